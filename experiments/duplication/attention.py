"""The attentions of the table: one set of parameters, attended with in many ways.

Queries and keys are one projection in all of them, so that a model that was trained with one can be
evaluated with any other.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax

from attnlab.ops.lsh import LSHOptions, Published
from attnlab.ops.lsh.rows import unit_keys
from attnlab.ops.routes import LSH, AllPairs, Route
from attnlab.scores import Dot

# What attention over all pairs may be, where queries and keys are shared: name and words.
EXACT = {
    "shared": "unit keys, a query does not see itself",
    "shared, raw keys": "keys as long as they are, a query does not see itself",
    "shared, own key": "unit keys, a query sees itself",
    "plain": "dot product: keys as long as they are, a query sees itself",
}


SCALES = ("1", "1/sqrt(d)")
MERGES = ("union", "multiset")


@dataclasses.dataclass(frozen=True)
class Hashing:
    """What the literature leaves open of LSH attention.

    >>> str(Hashing()), Hashing.parse("c=1/sqrt(d) B=1 no-mask multiset").bucket_factor
    ('c=1 B=2 mask union', 1)

    Attributes:
      scale: factor c of the logits, in `SCALES`: "1/sqrt(d)", as the paper writes, or "1", as in
        its released code. Also of attention over all pairs.
      bucket_factor: number of buckets over the number of chunks, L/C: 2 in the paper and its code,
        1 in reformer-pytorch.
      bucket_mask: whether a query sees keys of its own bucket only, as the paper writes; False =
        whatever is in its chunk and the chunk before, as all released code.
      merge: count of a pair that several rounds show, in `MERGES`: "union" = once.
    """

    scale: str = "1"
    bucket_factor: int = 2
    bucket_mask: bool = True
    merge: str = "union"

    def __str__(self) -> str:
        mask = "mask" if self.bucket_mask else "no-mask"
        return f"c={self.scale} B={self.bucket_factor} {mask} {self.merge}"

    @classmethod
    def parse(cls, text: str) -> Hashing:
        """The hashing of that name."""
        scale, factor, mask, merge = text.split()
        return cls(scale.removeprefix("c="), int(factor.removeprefix("B=")), mask == "mask", merge)

    def variations(self) -> list[Hashing]:
        """Each of the four varied alone, the scale first, and all four at once."""
        changes: list[dict[str, Any]] = [
            {"scale": SCALES[self.scale == SCALES[0]]},
            {"bucket_factor": 3 - self.bucket_factor},
            {"bucket_mask": not self.bucket_mask},
            {"merge": MERGES[self.merge == MERGES[0]]},
        ]
        changes.append({name: x for change in changes for name, x in change.items()})
        return [dataclasses.replace(self, **change) for change in changes]


@dataclasses.dataclass(frozen=True)
class SharedPairs(AllPairs):
    """All pairs where queries and keys are one projection, and a query sees itself.

    Args:
      implementation: None or a name, as for `attention`.
      unit: whether keys have unit norm.
    """

    unit: bool = False
    shares_qk = True

    def __call__(self, score: Any, q: jax.Array, k: jax.Array, v: jax.Array, **options: Any):
        """The context [*B, T, N, D]."""
        k = unit_keys(k, 1.0, "rms") if self.unit else k
        return super().__call__(score, q, k, v, **options)


def rounds_of(name: str) -> int | None:
    """The number of hash rounds of an attention `lsh-4`; None where it does not hash."""
    match = re.match(r"lsh-(\d+)", name)
    return int(match[1]) if match else None


def options(name: str, hashing: Hashing, *, length: int, chunk_size: int) -> dict[str, Any]:
    """What `TransformerConfig.attention` is told of one of `EXACT` or lsh-R: route and score."""
    scale = 1.0 if hashing.scale == "1" else None
    rounds = rounds_of(name)
    if rounds is not None:
        return {"route": lsh(rounds, hashing, length=length, chunk_size=chunk_size)}
    if name in ("plain", "shared, own key"):
        return {"route": SharedPairs(unit=name != "plain"), "score": Dot(scale)}
    norm = "rms" if name == "shared" else None
    exact = LSHOptions(logit_scale=scale, key_norm=norm)
    return {"route": LSH(num_hashes=1, num_buckets=1, chunk_size=length, options=exact)}


def lsh(rounds: int, hashing: Hashing, *, length: int, chunk_size: int) -> Route:
    """LSH attention as published: the borders of chunks say what is visible."""
    return LSH(
        num_hashes=rounds,
        num_buckets=hashing.bucket_factor * (length // chunk_size),
        chunk_size=chunk_size,
        options=Published(
            same_bucket=hashing.bucket_mask,
            union=hashing.merge == "union",
            logit_scale=1.0 if hashing.scale == "1" else None,
        ),
    )
