"""Quality of hashing: how much of full attention LSH sees, on a model's activations.

A *line* is one way to hash and to choose keys: chunk size, number of buckets, window, centering,
union or multiset. The base line is varied in one of these at a time, and each line is measured over
rounds.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from attnlab.ops.lsh import (
    LSHOptions,
    hash_buckets,
    hash_quality,
    make_rotations,
    running_center,
)
from attnlab.runs.report import group

CENTERING = ("none", "running")
MERGE = ("union", "multiset")


@dataclasses.dataclass(frozen=True)
class Line:
    """One way to hash; `window` is in slots, at most the chunk size: all that can be seen."""

    chunk_size: int
    num_buckets: int
    window: int
    centering: str
    merge: str

    def __str__(self) -> str:
        center = "no center" if self.centering == "none" else f"{self.centering} center"
        return (
            f"chunk {self.chunk_size}, {self.num_buckets} buckets, window {self.window},"
            f" {center}, {self.merge}"
        )


@dataclasses.dataclass(frozen=True)
class Quality:
    """A line, measured with one number of rounds.

    Attributes:
      line: line that was measured.
      num_hashes: number of hash rounds.
      means: fields of `HashQuality`, averaged over layers and heads.
      per_head: values of the same fields, [layers][heads].
      bits: loss of the model at the end of training, in bits per byte; None = untrained.
    """

    line: Line
    num_hashes: int
    means: dict[str, float]
    per_head: dict[str, list[list[float]]]
    bits: float | None = None

    @property
    def keys_compared(self) -> int:
        """Number of slots that a query is compared with: two chunks in every round."""
        return self.num_hashes * 2 * self.line.chunk_size


def measure(
    line: Line,
    num_hashes: int,
    qk: jax.Array,
    v: jax.Array,
    *,
    top_k: int,
    seed: int,
    bits: float | None = None,
) -> Quality:
    """The row of a line; qk (the keys too) and v are [layers, L, N, H].

    With the same seed the first rounds are always the same.
    """
    *_, num_heads, head_dim = qk.shape
    rotations = make_rotations(
        jax.random.key(seed),
        num_heads=num_heads,
        head_dim=head_dim,
        num_hashes=num_hashes,
        num_buckets=line.num_buckets,
    )
    center = running_center(qk) if line.centering == "running" else None
    quality = hash_quality(
        qk,
        v,
        hash_buckets(qk, rotations, center=center),
        chunk_size=line.chunk_size,
        options=LSHOptions(union=line.merge == "union", window=line.window),
        top_k=top_k,
    )
    means = {name: np.asarray(x).tolist() for name, x in quality.means()._asdict().items()}
    per_head = {name: np.asarray(x).tolist() for name, x in quality._asdict().items()}
    return Quality(line, num_hashes, means, per_head, bits)


def rounds_needed(rows: Sequence[Quality], target: float) -> Quality | None:
    """The row with the fewest rounds that capture so much mass, of one line's rows; or None."""
    enough = [row for row in rows if row.means["captured_mass"] >= target]
    return min(enough, key=lambda row: row.num_hashes, default=None)


def by_line(rows: Sequence[Quality]) -> dict[Line, list[Quality]]:
    """The rows of each line, rounds rising; lines in order of first appearance."""
    lines = group(rows, lambda row: row.line)
    return {line: sorted(some, key=lambda row: row.num_hashes) for line, some in lines.items()}
