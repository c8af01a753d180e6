"""What LSH attention sees of full attention, on a model's activations: the cases and one's result.

One *line* is a way to hash and to look around: chunk size, buckets, window, centering, union or
multiset. Around a base line one thing is varied at a time, and each line is measured over rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab.ops.lsh import (
    HashQuality,
    LSHOptions,
    default_num_buckets,
    hash_buckets,
    hash_quality,
    make_rotations,
    running_center,
)
from attnlab.runs.command_line import check_seed
from attnlab.runs.errors import Invalid

CENTRING = ("none", "running")
MERGE = ("union", "multiset")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure; a field is the flag of the same name. The first of a list is the base."""

    rounds: tuple[int, ...] = (1, 2, 4, 8, 16)
    chunk_sizes: tuple[int, ...] = (64, 32, 128)
    bucket_factors: tuple[float, ...] = (1.0, 0.5, 2.0)
    windows: tuple[int, ...] = (0, 16, 32)
    centering: tuple[str, ...] = CENTRING
    merge: tuple[str, ...] = MERGE
    length: int = 2048
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int = 32
    train_steps: int = 200
    top_k: int = 16
    target_mass: float = 0.9
    seed: int = 0
    data_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks what can be checked before anything is read or run.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        least = {"windows": 0, "train_steps": 0, "seed": 0, "length": 2}
        counts = "rounds chunk_sizes windows length num_layers num_heads head_dim train_steps"
        for name in (*counts.split(), "top_k", "seed", "bucket_factors"):
            value, bound = getattr(self, name), least.get(name, 1)
            several = value if isinstance(value, tuple) else (value,)
            if not several:
                raise Invalid(f"--{name}= is empty; give numbers, separated by commas")
            for one in several:
                if name == "bucket_factors" and not 0 < one < float("inf"):
                    raise Invalid(f"--{name}: {one:g} is not positive; 1 is 2·length/chunk buckets")
                if name != "bucket_factors" and one < bound:
                    raise Invalid(f"--{name}: {one} is too small; give {bound} or more")
        check_seed(self.seed)
        for name, valid in (("centering", CENTRING), ("merge", MERGE)):
            value = getattr(self, name)
            wrong = [one for one in value if one not in valid]
            if wrong or not value:
                raise Invalid(f"--{name}={','.join(value)}: choose from {', '.join(valid)}")
        if self.num_heads * self.head_dim % 2:
            raise Invalid(
                f"--num_heads={self.num_heads} --head_dim={self.head_dim}: their product is the"
                " width of sines and cosines, an even number; change one of them"
            )
        if max(self.windows) > self.chunk_sizes[0]:
            raise Invalid(
                f"--windows: {max(self.windows)} is more than the first of --chunk_sizes,"
                f" {self.chunk_sizes[0]}; a window lies within one chunk before the query"
            )
        if not 0 < self.target_mass <= 1:
            raise Invalid(f"--target_mass={self.target_mass:g}: give a share above 0, at most 1")
        for path in self.data_files:
            if not Path(path).is_file():
                raise Invalid(f"--data_files={path}: no such file; give files of text")


@dataclasses.dataclass(frozen=True)
class Line:
    """One way to hash; `window` is in slots, the chunk size where it is all that can be seen."""

    chunk_size: int
    num_buckets: int
    window: int
    centering: str
    merge: str

    def title(self) -> str:
        """In words."""
        center = "no center" if self.centering == "none" else f"{self.centering} center"
        return (
            f"chunk {self.chunk_size}, {self.num_buckets} buckets, window {self.window},"
            f" {center}, {self.merge}"
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """A line at a number of rounds.

    Attributes:
      line: what was measured.
      num_hashes: rounds.
      means: the fields of `HashQuality`, averaged over layers and heads.
      per_head: its scalar fields, [layers][heads].
      layer_sizes: its `bucket_sizes`, averaged over heads, [layers][bins].
      bits: the model's loss at the end of training, in bits a byte; None where untrained.
      flags: the command line's settings.
      environment: where it was measured.
      time: when, UTC.
    """

    line: Line
    num_hashes: int
    means: dict[str, Any]
    per_head: dict[str, list[list[float]]]
    layer_sizes: list[list[float]]
    bits: float | None = None
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    time: str = ""

    @property
    def keys_compared(self) -> int:
        """Slots that a query is compared with, its own chunk and the one before in every round."""
        return self.num_hashes * 2 * self.line.chunk_size


def plan(settings: Settings) -> list[Line]:
    """The base line, then those that differ from it in one thing."""

    def line(
        chunk: int = settings.chunk_sizes[0],
        factor: float = settings.bucket_factors[0],
        window: int = settings.windows[0],
        centering: str = settings.centering[0],
        merge: str = settings.merge[0],
    ) -> Line:
        buckets = default_num_buckets(max(1, round(settings.length * factor)), chunk)
        return Line(chunk, buckets, min(window, chunk) or chunk, centering, merge)

    lines = [line()]
    lines += [line(chunk=chunk) for chunk in settings.chunk_sizes[1:]]
    lines += [line(factor=factor) for factor in settings.bucket_factors[1:]]
    lines += [line(window=window) for window in settings.windows[1:]]
    lines += [line(centering=centering) for centering in settings.centering[1:]]
    lines += [line(merge=merge) for merge in settings.merge[1:]]
    return list(dict.fromkeys(lines))


def measure(
    line: Line, num_hashes: int, qk: jax.Array, v: jax.Array, *, top_k: int, seed: int
) -> Row:
    """One row, without where it came from.

    Args:
      line: how to hash.
      num_hashes: rounds; with the same seed the first ones are the same however many there are.
      qk: [layers, L, N, H].
      v: [layers, L, N, H].
      top_k: of the recall.
      seed: of the rotations.
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
    found = hash_quality(
        qk,
        v,
        hash_buckets(qk, rotations, center=center),
        chunk_size=line.chunk_size,
        options=LSHOptions(union=line.merge == "union", window=line.window),
        top_k=top_k,
    )
    scalars = [name for name in HashQuality._fields if name != "bucket_sizes"]
    means = {name: np.asarray(x).tolist() for name, x in found.means()._asdict().items()}
    per_head = {name: np.asarray(getattr(found, name)).tolist() for name in scalars}
    return Row(line, num_hashes, means, per_head, np.mean(found.bucket_sizes, axis=1).tolist())


def rounds_needed(rows: Sequence[Row], target: float, measure: str = "captured_mass") -> Row | None:
    """Of one line's rows, that of the fewest rounds whose mean reaches the target, if any."""
    enough = [row for row in rows if row.means[measure] >= target]
    return min(enough, key=lambda row: row.num_hashes, default=None)


def by_line(rows: Sequence[Row]) -> dict[Line, list[Row]]:
    """The rows of each line, in the order the lines came, by rounds."""
    found: dict[Line, list[Row]] = {}
    for row in rows:
        found.setdefault(row.line, []).append(row)
    return {line: sorted(some, key=lambda row: row.num_hashes) for line, some in found.items()}
