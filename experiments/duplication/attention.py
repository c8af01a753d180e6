"""The attentions of the table: one set of parameters, attended with in many ways.

Queries and keys are one projection in all of them, so that a model that was trained with one can be
evaluated with any other.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax

from attnlab.ops.lsh import LSHOptions
from attnlab.ops.lsh.rows import unit_keys
from attnlab.ops.routes import LSH, AllPairs, Route
from attnlab.scores import Dot

__all__ = ["EXACT", "Hashing", "options", "rounds_of"]

# What attention over all pairs may be, where queries and keys are shared: name and words.
EXACT = {
    "shared": "unit keys, a query does not see itself",
    "shared, raw keys": "keys as long as they are, a query does not see itself",
    "shared, own key": "unit keys, a query sees itself",
    "plain": "dot product: keys as long as they are, a query sees itself",
}


@dataclasses.dataclass(frozen=True)
class Hashing:
    """What the literature leaves open of LSH attention.

    Attributes:
      scaled: whether logits are divided by √d, as the paper writes; False = the factor 1, as in its
        released code. Also of attention over all pairs.
      bucket_factor: number of buckets over the number of chunks, L/C: 2 in the paper and its code,
        1 in reformer-pytorch.
      bucket_mask: whether a query sees keys of its own bucket only, as the paper writes; False =
        whatever is in its chunk and the chunk before, as all released code.
      union: whether a pair that several rounds show counts once.
    """

    scaled: bool = False
    bucket_factor: int = 2
    bucket_mask: bool = True
    union: bool = True

    def words(self) -> str:
        """All of it in words."""
        scale = "c = 1/√d" if self.scaled else "c = 1"
        buckets = "B = 2L/C" if self.bucket_factor == 2 else f"B = {self.bucket_factor}·L/C"
        mask = "bucket mask" if self.bucket_mask else "no bucket mask"
        return f"{scale}, {buckets.replace('1·', '')}, {mask}, {_merge(self)}"

    def beside(self, base: Hashing) -> str:
        """What differs from another in words; "" = nothing."""
        pairs = zip(self.words().split(", "), base.words().split(", "), strict=True)
        return ", ".join(mine for mine, theirs in pairs if mine != theirs)

    def variations(self) -> dict[str, Hashing]:
        """Itself, each of the four varied alone, and all four at once, by a short name."""
        changed: dict[str, dict[str, Any]] = {
            "logit_scale": {"scaled": not self.scaled},
            "buckets": {"bucket_factor": 3 - self.bucket_factor},
            "bucket_mask": {"bucket_mask": not self.bucket_mask},
            "merge": {"union": not self.union},
        }
        changed["all"] = {name: x for one in changed.values() for name, x in one.items()}
        found = {name: dataclasses.replace(self, **fields) for name, fields in changed.items()}
        return {"base": self, **found}


def _merge(hashing: Hashing) -> str:
    return "union" if hashing.union else "multiset"


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
    found = re.match(r"lsh-(\d+)", name)
    return int(found[1]) if found else None


def options(name: str, hashing: Hashing, *, length: int, chunk_size: int) -> dict[str, Any]:
    """What `TransformerConfig.attention` is told: route and score.

    Args:
      name: name of the attention: one of `EXACT`, or "lsh-" and a number of rounds.
      hashing: choices that the literature leaves open.
      length: number of tokens in an example, L.
      chunk_size: number of slots in a chunk, C.
    """
    scale = None if hashing.scaled else 1.0
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
        options=LSHOptions(
            strict=False,
            same_bucket=hashing.bucket_mask,
            union=hashing.union,
            logit_scale=None if hashing.scaled else 1.0,
        ),
    )
