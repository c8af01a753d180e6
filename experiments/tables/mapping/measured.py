"""Times and memory: which published table is which run of `compare_lengths`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.tables.beside import Beside
from experiments.tables.measured import MeasuredTable, Quantity

__all__ = ["MEASURED"]

_THOUSANDS = {f"{k}K": 1024 * k for k in (1, 2, 3, 4)}
_LENGTHS = {str(n): n for n in (512, 1024, 2048, 4096)}
_NOT_REFORMER = (
    "LRA's code of that name cuts any sequence into 10 chunks, does not normalize keys, multiplies"
    " logits by √d and masks nothing"
)


def _lra(what: str, column: str, quantity: Quantity) -> MeasuredTable:
    lengths = ",".join(map(str, _THOUSANDS.values()))
    return MeasuredTable(
        f"{what} over length: Tay et al. 2020, Long Range Arena, Table 2",
        "lra2020_table2.csv",
        {title: f"{column}_{title}" for title in _THOUSANDS},
        flags=(
            "--mechanisms=exact:dense,window-128,lsh-4",
            f"--lengths={lengths}",
            "--nocausal",
            "--passes=forward_backward",
            "--case_seconds=60",
        ),
        quantity=quantity,
        base=("Transformer", "exact:dense"),
        lines={"Local Attention": "window-128", "Reformer": "lsh-4"},
        lengths=_THOUSANDS,
        not_comparable={"Reformer": _NOT_REFORMER},
        note="The paper: training steps of a whole model on 16 TPU v3 chips, batch 32. Ours: one"
        " layer of attention with its projections, forward and backward, batch 1, which draws the"
        " ratios apart from 1, as there is no feed-forward network beside it. 1K is 1024 tokens.",
    )


def _flash(what: str, number: int, unit: str, quantity: Quantity, **options: Any) -> MeasuredTable:
    lines: Mapping[str, str] = {
        "PyTorch Attention": "exact:dense",
        "Local Attention": "window-128",
        "Reformer": "lsh-4",
    }
    return MeasuredTable(
        f"{what} over length: Dao et al. 2022, FlashAttention, Table {number}",
        f"flashattention2022_table{number}.csv",
        {title: f"{unit}_{title}" for title in _LENGTHS},
        flags=(
            "--mechanisms=exact:blockwise,exact:dense,window-128,lsh-4",
            f"--lengths={','.join(_LENGTHS)}",
            "--nocausal",
            "--ops_only",
            "--num_heads=8",
            "--case_seconds=60",
        ),
        quantity=quantity,
        base=("FlashAttention", "exact:blockwise"),
        lines=lines,
        lengths=_LENGTHS,
        note="The paper: attention alone on an A100, batch 16, 8 heads of 64, half precision,"
        " without masks; its *Reformer* is the reference code. Ours: the same heads, batch 1,"
        " float32, where the base is not a kernel but a loop over blocks.",
        **options,
    )


MEASURED: dict[str, Beside] = {
    "lra2_speed": _lra("Speed", "steps_per_s", Quantity("median_seconds", is_rate=True)),
    "lra2_memory": _lra("Memory", "mem_GB", Quantity("memory_bytes")),
    "flash18_forward": _flash("Time, forward,", 18, "ms", Quantity("median_seconds", "forward")),
    "flash20_both": _flash("Time, forward + backward,", 20, "ms", Quantity("median_seconds")),
    "flash21_memory": _flash("Memory", 21, "memory_MB", Quantity("memory_bytes")),
}
