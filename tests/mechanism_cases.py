"""Every mechanism, once: the list that the contract, lowering and memory tests run over.

To add a mechanism, append a `Mechanism` to `MECHANISMS` (its file, or a function here that returns
some): how it is applied to named arrays, and how these are made for given sizes.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.attention import Implementation, attention
from attnlab.ops.hard import hard_attention
from attnlab.ops.local import local_attention, window_attention
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.hashing import Rotations, hash_buckets, make_rotations
from attnlab.testing import Sizes, Subject
from tests.daily import daily
from tests.oracle_scores import SCORES, ScoreCase


@dataclass(frozen=True)
class Mechanism(Subject):
    """A function of named arrays and a mask, with what only these tests ask.

    Attributes:
      output: function of the sizes that returns the shape of the context.
      plain: name of the plain version of the same function, whose error bounds this one's.
    """

    output: Callable[[Sizes], tuple[int, ...]] = lambda z: (
        z.batch,
        z.queries,
        z.num_heads,
        z.value_width,
    )
    plain: str | None = None


def causal_and_visible(visible: np.ndarray, causal: bool) -> masks.Mask:
    """Any keys hidden, causal or not, as one type of mask: one compilation serves every test."""
    batch, num_keys = visible.shape
    offset = jnp.full(batch, 0 if causal else num_keys)
    return masks.Causal(offset) & masks.Explicit(jnp.asarray(visible)[:, None, None])


def padding(visible: np.ndarray, causal: bool) -> masks.Mask:
    assert not causal
    return masks.Padding(jnp.asarray(visible.sum(-1)))


def exact(case: ScoreCase, implementation: Implementation) -> Mechanism:
    """`attention` with this score."""
    reads_keys = case.name != "location"

    def make(rng, sizes):
        q, k, v = case.qkv(rng, sizes)
        parameters = case.parameters(rng, sizes)
        named = {f"parameter_{i}": x for i, x in enumerate(parameters)}
        return {"q": q, "v": v} | ({"k": k} if reads_keys else {}) | named

    def apply(arrays, mask):
        parameters = (x for name, x in sorted(arrays.items()) if name.startswith("parameter"))
        v = arrays["v"]
        return attention(
            case.build(*parameters),
            arrays["q"],
            arrays.get("k", v),
            v,
            mask=mask,
            implementation=implementation,
        )

    return Mechanism(
        f"{case.name}-{implementation}",
        apply,
        make,
        keys=("k", "v") if reads_keys else ("v",),
        mask=causal_and_visible,
        plain=None if implementation == "dense" else f"{case.name}-dense",
    )


def window(implementation: Implementation, sides: tuple[int, int] = (5, 3)) -> Mechanism:
    def apply(arrays, mask):
        return window_attention(
            arrays["q"],
            arrays["k"],
            arrays["v"],
            window=sides,
            mask=mask,
            implementation=implementation,
        )

    return replace(
        exact(SCORES[1], implementation), name=f"window-{implementation}", apply=apply, plain=None
    )


def hard(case: ScoreCase) -> Mechanism:
    """The likeliest key, with all that has a gradient: its value, log α, entropy, the weights."""
    base = exact(case, "dense")

    def apply(arrays, mask):
        parameters = (x for name, x in sorted(arrays.items()) if name.startswith("parameter"))
        choice = hard_attention(
            *(arrays[name] for name in "qkv"),
            score=case.build(*parameters),
            mask=mask,
            straight_through=True,
        )
        said = (choice.log_prob + choice.entropy).astype(choice.context.dtype)
        return choice.context + said[..., None]

    return replace(base, name=f"hard_{case.name}", apply=apply, plain=None)


def local(name: str, *, gaussian: bool) -> Mechanism:
    """Luong's local-m, whose centers are fixed, and local-p, whose centers are an array."""

    def make(rng, sizes):
        q, k, v = SCORES[0].qkv(rng, sizes)
        centers = rng.uniform(0, sizes.keys - 1, (sizes.batch, sizes.queries))
        return {"q": q, "k": k, "v": v} | ({"centers": centers} if gaussian else {})

    def apply(arrays, mask):
        q, k, v = (arrays[name] for name in "qkv")
        centers = arrays.get("centers")
        if centers is None:
            centers = jnp.broadcast_to(jnp.arange(q.shape[-3]), q.shape[:-2])
        return local_attention(q, k, v, centers, half_width=3, gaussian=gaussian, mask=mask)

    return Mechanism(
        name,
        apply,
        make,
        queries=("q", "centers") if gaussian else ("q",),
        mask=padding,
        hides_anywhere=False,
        causal=False,
    )


@functools.cache
def rotations(width: int) -> Rotations:
    """Two rounds', as numbers that any trace may hold."""
    with jax.ensure_compile_time_eval():
        made = make_rotations(
            jax.random.key(0), num_heads=1, head_dim=width, num_hashes=2, num_buckets=4
        )
    return jax.tree.map(np.asarray, made)


def buckets(x):
    return hash_buckets(x, rotations(x.shape[-1]))


def lsh_self(implementation: Implementation, chunk_size: int = 5) -> Mechanism:
    """Shared queries and keys, which the hash reads without a gradient, or given "buckets"."""

    def make(rng, sizes):
        q, _, v = SCORES[0].qkv(rng, sizes._replace(queries=sizes.keys))
        return {"qk": q, "v": v}

    def apply(arrays, mask):
        qk = arrays["qk"]
        return lsh_attention(
            qk,
            arrays["v"],
            arrays["buckets"] if "buckets" in arrays else buckets(qk),
            chunk_size=chunk_size,
            causal=False,
            mask=mask,
            implementation=implementation,
        )

    def mask(visible, causal):
        keys = masks.Explicit(jnp.asarray(visible)[:, None, None])
        return masks.Causal() & keys if causal else keys

    return Mechanism(
        f"lsh-{implementation}", apply, make, queries=("qk",), keys=("qk", "v"), mask=mask
    )


def lsh_cross(implementation: str) -> Mechanism:
    def make(rng, sizes):
        return dict(zip("qkv", SCORES[0].qkv(rng, sizes), strict=True))

    def apply(arrays, mask):
        q, k, v = (arrays[name] for name in "qkv")
        return lsh_cross_attention(
            q,
            k,
            v,
            buckets(q),
            buckets(k),
            chunk_size=5,
            mask=mask,
            implementation=implementation,
        )

    name = f"lsh_cross-{implementation}"
    return Mechanism(name, apply, make, mask=causal_and_visible)


MECHANISMS: tuple[Mechanism, ...] = (
    *(exact(case, name) for case in SCORES for name in ("blockwise", "dense")),
    window("blockwise"),
    window("dense"),
    *(hard(case) for case in SCORES if case.name in ("scaled_dot", "additive")),
    local("local_m", gaussian=False),
    local("local_p", gaussian=True),
    *(make(name) for make in (lsh_self, lsh_cross) for name in ("sorted", "dense")),
)
BY_NAME = {mechanism.name: mechanism for mechanism in MECHANISMS}
ONE_OF_EACH_ENGINE = (
    "dot-blockwise",
    "additive-dense",
    "window-blockwise",
    "hard_additive",
    "local_m",
    "lsh-sorted",
    "lsh_cross-dense",
)


def over(mechanisms: Iterable[Mechanism], *kept: str) -> pytest.MarkDecorator:
    """A test's cases `mechanism`; the daily loop has those named, or one of each engine."""
    mechanisms = list(mechanisms)
    every_day = [BY_NAME[name] for name in kept]
    every_day = every_day or [x for x in mechanisms if x.name in ONE_OF_EACH_ENGINE]
    cases = daily(mechanisms, *every_day)
    return pytest.mark.parametrize("mechanism", cases, ids=[x.name for x in mechanisms])
