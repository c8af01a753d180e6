"""The pairs of each of --rows: the work, the peer to compare with, and the bounds to stay below."""

from collections.abc import Iterable, Iterator
from typing import Any

from attnlab.bench.case import PASSES, TRAIN_STEP, Case
from attnlab.bench.memory import MIB
from experiments.compare_peers.pairs import (
    FLAX,
    HUGGING_FACE,
    HUGGING_FACE_LM,
    JAX_NN,
    KERAS,
    LUCIDRAINS,
    OURS,
    REFORMER_PYTORCH,
    SDPA,
    TRAX,
    Pair,
    Side,
)

# The mechanisms whose memory must grow linearly.
GROWING = ("additive", "dot", "general", "cosine", "concat", "location", "exact", "window-128")
CROSSOVER_LENGTHS = (512, 1024, 2048, 4096, 8192)
PARITY_LENGTH = 512  # at which values of LSH implementations are compared, on given buckets


def _additive() -> Iterator[Pair]:
    bounds = ((1 / 25, None), (1 / 15, 1 / 100))
    for passes, (most_time, most_memory) in zip(PASSES, bounds, strict=True):
        case = _case("additive", 2048, passes, num_heads=1, head_dim=128, causal=False)
        yield _exact("additive", case, KERAS, most_time, most_memory)


def _multi_head() -> Iterator[Pair]:
    for passes in PASSES:
        for peer in (FLAX, JAX_NN):
            yield _exact("exact", _case("exact", 4096, passes), peer, 1 / 5, 1 / 25)


def _sdpa() -> Iterator[Pair]:
    for length in (4096, 8192):
        for passes, most_time in zip(PASSES, (0.9, 1.05), strict=True):
            yield _exact("sdpa", _case("exact", length, passes), SDPA, most_time)


def _accuracy() -> Iterator[Pair]:
    for length in (4096, 8192):
        for dtype in ("float32", "bfloat16"):
            for peer in (SDPA, JAX_NN, FLAX):
                case = _case("exact", length, "forward", dtype=dtype)
                sides = Side(OURS, case), Side(peer, case)
                yield Pair("accuracy", *sides, most_error=1.05, timed=False)  # no matter of luck


def _growth() -> Iterator[Pair]:
    for name in GROWING:
        for passes in PASSES:
            long, short = (
                Side(OURS, _case(name, n, passes, implementation="blockwise")) for n in (8192, 2048)
            )
            yield Pair("growth", long, short, most_memory=4.4, timed=False)


def _lsh() -> Iterator[Pair]:
    bounds = {HUGGING_FACE: (8, 5), REFORMER_PYTORCH: (7, 4.5), SDPA: (6, 5), OURS: (6, 5)}
    for p, passes in enumerate(PASSES):
        ours = Side(OURS, _case("lsh-4", 16384, passes))
        for peer, faster in bounds.items():
            exact = _case("exact", 16384, passes, implementation="blockwise")
            like = exact if peer in (SDPA, OURS) else ours.case
            bytes_ = 320 * MIB if peer == OURS and passes == "forward_backward" else None
            yield Pair(
                "lsh",
                ours,
                Side(peer, like),
                checked=_parity(peer, passes),
                most_time=1 / faster[p],
                most_bytes=bytes_,
            )


def _lsh_growth() -> Iterator[Pair]:
    for length, rounds in ((65_536, 4), (262_144, 1)):
        long, short = (
            Side(OURS, _case(f"lsh-{rounds}", n, "forward_backward")) for n in (length, length // 4)
        )
        yield Pair("lsh_growth", long, short, most_time=5, most_memory=4.4)


def _crossover() -> Iterator[Pair]:
    for passes in PASSES:
        for length in CROSSOVER_LENGTHS:
            ours = Side(OURS, _case("lsh-4", length, passes))
            yield Pair("crossover", ours, Side(SDPA, _case("exact", length, passes)))


def _training() -> Iterator[Pair]:
    sizes: dict[str, Any] = {"program": "language_model", "num_layers": 4, "vocab_size": 260}
    for length in (4096, 16384):
        case = Case("chunked-reversible-lsh-4", length, TRAIN_STEP, num_heads=4, **sizes)
        ours, peer = Side(OURS, case), Side(HUGGING_FACE_LM, case)
        yield Pair("training", ours, peer, most_time=1 / 4, most_memory=1 / 4)


ROWS = {
    "additive": _additive,
    "exact": _multi_head,
    "sdpa": _sdpa,
    "accuracy": _accuracy,
    "growth": _growth,
    "lsh": _lsh,
    "lsh_growth": _lsh_growth,
    "crossover": _crossover,
    "training": _training,
}


def pairs(rows: Iterable[str]) -> list[Pair]:
    """The pairs of the named rows, each row once."""
    return [pair for name in dict.fromkeys(rows) for pair in ROWS[name]()]


def _exact(
    row: str, case: Case, peer: str, most_time: float, most_memory: float | None = None
) -> Pair:
    sides = Side(OURS, case), Side(peer, case)
    return Pair(row, *sides, checked=sides, most_time=most_time, most_memory=most_memory)


def _parity(peer: str, passes: str) -> tuple[Side, Side] | None:
    """The sides to compare values of: the peer, and our preset that computes the same function.

    The timed program is another one, our default `strict`, which no peer computes.

    In float64: a token that sees no key has the log-sum-exp -1e5 (or -5e4) in the peers' code,
    which in float32 leaves 2e-3 of its weights when rounds are merged.
    """
    preset = {HUGGING_FACE: TRAX, REFORMER_PYTORCH: LUCIDRAINS}.get(peer)
    case = _case("lsh-2", PARITY_LENGTH, passes, num_heads=2, dtype="float64")
    return (Side(preset, case), Side(peer, case)) if preset else None


def _case(mechanism: str, length: int, passes: str, **sizes: Any) -> Case:
    return Case(mechanism, length, passes, ops_only=True, **sizes)
