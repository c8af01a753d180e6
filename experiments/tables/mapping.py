"""Which cell of which published table is which number of ours: the one place that says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from attnlab.models.cells import LSTMCell, TanhCell
from experiments.tables.growth import Growth
from experiments.tables.parameters import Count

__all__ = ["SCALES", "TABLES", "Cell", "Mapped", "Ours"]

SCALES = ("exact",)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of ours beside one of a paper.

    Attributes:
      table: name of the table here.
      row: name of the row in the published table.
    """

    table: str
    row: str

    def __str__(self) -> str:
        return f"{self.table}, {self.row}"


class Ours(Protocol):
    """A way to a number of ours."""

    def measure(self) -> dict[str, float]:
        """The numbers of a cell, by name."""
        ...

    def written(self, values: Mapping[str, float]) -> str:
        """The numbers as they stand in the table."""
        ...

    def verdict(self, paper: str, values: Mapping[str, float]) -> str:
        """The verdict beside what the paper prints."""
        ...


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A published table and what we have for it.

    Attributes:
      title: title of the report's section.
      file: file in `experiments/published`.
      column: column of the file that ours stands beside.
      rows: way to our number, by the name of the row.
      scale: one of `SCALES`.
      note: remark below the table.
    """

    title: str
    file: str
    column: str
    rows: Mapping[str, Ours]
    scale: str = "exact"
    note: str = ""


def _count(model: str, vocab_size: int | None, **fields: Any) -> Count:
    return Count(model, tuple(fields.items()), vocab_size)


def _transformer(**fields: Any) -> Count:
    # "About 37,000": of all numbers that round to it none gives the printed parameters; this one
    # gives all but one row's.
    return _count("transformer", 41_100, **fields)


def _britz(**fields: Any) -> Count:
    return _count("britz", 37_007, **fields)


def _of_britz(number: int, what: str, file: str, **counts: Count) -> Mapped:
    title = f"Parameters: Britz et al. 2017, Table {number}, {what}"
    rows = {row.replace("_", "-"): count for row, count in counts.items()}
    return Mapped(title, f"britz2017_{file}.csv", "params_millions", rows)


def _grows(layer: str, work: str = "products", **paper: float) -> Growth:
    return Growth(layer, work, tuple(paper.items()))


_LSTM = {"encoder_cell": LSTMCell, "decoder_cell": LSTMCell}
_INPUT = {"input_transform": True}

TABLES: dict[str, Mapped] = {
    "vaswani1_complexity": Mapped(
        "Operations of a layer: Vaswani et al. 2017, Table 1",
        "vaswani2017_table1.csv",
        "complexity_per_layer",
        {
            "Self-Attention": _grows("self_attention", n=2, d=1),
            "Recurrent": _grows("recurrent", n=1, d=2),
            "Convolutional": _grows("convolutional", k=1, n=1, d=2),
            "Self-Attention (restricted)": _grows("restricted", r=1, n=1, d=1),
        },
        note="Without projections, which would add n·d²: the paper does not count them either.",
    ),
    "vaswani1_sequential": Mapped(
        "Sequential operations of a layer: Vaswani et al. 2017, Table 1",
        "vaswani2017_table1.csv",
        "sequential_operations",
        {
            "Self-Attention": _grows("self_attention", "sequential", n=0),
            "Recurrent": _grows("recurrent", "sequential", n=1),
            "Convolutional": _grows("convolutional", "sequential", n=0),
            "Self-Attention (restricted)": _grows("restricted", "sequential", n=0),
        },
        note="Counted as the longest chain of matrix products, each of which needs the one before.",
    ),
    "reformer1_time": Mapped(
        "Operations of attention: Kitaev et al. 2020, Table 1",
        "reformer2020_table1.csv",
        "time_complexity",
        {
            "Scaled Dot-Product": _grows("self_attention", n=2),
            "Memory-Efficient": _grows("blockwise", n=2),
            "LSH Attention": _grows("lsh", n=1, R=1, c=2),
        },
        note="Here n is the paper's l, doubled with chunks as long as before, R its n_r, and"
        " c = l / n_c the length of a chunk. The paper writes that squared, in Table 3 too"
        " (c = 128²), but a query meets some chunks of keys, so that the work grows with c itself."
        " Hashing, which the paper does not count, is in ours. Of exact attention only the length"
        " is compared: the paper's b·n_h·l² leaves out the width.",
    ),
    "vaswani3_parameters": Mapped(
        "Parameters: Vaswani et al. 2017, Table 3",
        "vaswani2017_table3.csv",
        "params_millions",
        {
            "base": _transformer(),
            "B1": _transformer(key_width=16),
            "B2": _transformer(key_width=32),
            "C1": _transformer(num_layers=2),
            "C2": _transformer(num_layers=4),
            "C3": _transformer(num_layers=8),
            "C4": _transformer(width=256),
            "C5": _transformer(width=1024),
            "C6": _transformer(hidden=1024),
            "C7": _transformer(hidden=4096),
            "big": _transformer(width=1024, hidden=4096, num_heads=16),
        },
    ),
    "britz1_parameters": Mapped(
        "Parameters: Britz et al. 2017, Table 1, width of the embeddings",
        "britz2017_embedding.csv",
        "params_millions",
        {str(n): _britz(embed_features=n) for n in (128, 256, 512, 1024, 2048)},
    ),
    "britz2_parameters": _of_britz(
        2,
        "cells",
        "cell",
        LSTM=_britz(**_LSTM),
        GRU=_britz(),
        Vanilla_Dec=_britz(decoder_cell=TanhCell),
    ),  # fmt: skip
    "britz3_parameters": _of_britz(
        3,
        "depth",
        "depth",
        Enc_2=_britz(),
        Enc_4=_britz(encoder_layers=2),
        Enc_8=_britz(encoder_layers=4),
        Enc_8_Res=_britz(encoder_layers=4, encoder_residual="add"),
        Enc_8_ResD=_britz(encoder_layers=4, encoder_residual="dense"),
        Dec_1=_britz(decoder_layers=1),
        Dec_2=_britz(),
        Dec_4=_britz(decoder_layers=4),
        Dec_4_Res=_britz(decoder_layers=4, decoder_residual="add", **_INPUT),
        Dec_4_ResD=_britz(decoder_layers=4, decoder_residual="dense", **_INPUT),
        Dec_8=_britz(decoder_layers=8),
        Dec_8_Res=_britz(decoder_layers=8, decoder_residual="add"),
        Dec_8_ResD=_britz(decoder_layers=8, decoder_residual="dense"),
    ),  # fmt: skip
    "britz4_parameters": _of_britz(
        4,
        "directions",
        "direction",
        Bidi_2=_britz(),
        Uni_1=_britz(direction="forward"),
        Uni_1R=_britz(direction="backward"),
        Uni_2=_britz(direction="forward", encoder_layers=2),
        Uni_2R=_britz(direction="backward", encoder_layers=2),
        Uni_4=_britz(direction="forward", encoder_layers=4),
        Uni_4R=_britz(direction="backward", encoder_layers=4),
    ),  # fmt: skip
    "britz5_parameters": Mapped(
        "Parameters: Britz et al. 2017, Table 5, attention",
        "britz2017_attention.csv",
        "params_millions",
        {
            **{f"Mul-{n}": _britz(attention_features=n) for n in (128, 256, 512, 1024)},
            **{
                f"Add-{n}": _britz(attention="add", attention_features=n)
                for n in (128, 256, 512, 1024)
            },
            "None-State": _britz(attention="none-state"),
            "None-Input": _britz(attention="none-input"),
        },
    ),
    "bahdanau_parameters": Mapped(
        "Parameters: Bahdanau et al. 2014, in closed form",
        "param_counts.csv",
        "exact_V37000",
        {"Bahdanau RNNsearch": _count("rnn_search", 30_000)},
    ),
    "reformer_parameters": Mapped(
        "Parameters: Reformer of enwik8",
        "param_counts.csv",
        "published_millions",
        {
            "Reformer enwik8 (HF google/reformer-enwik8 = trax 2020-01 gin)": _count(
                "reformer", None
            )
        },
    ),
}
