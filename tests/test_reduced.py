"""What a caller reduces is right, whatever the operands are.

XLA:CPU fuses a reduction with the product before it, and then computes some products with constant
or broadcast operands wrongly. So each case is a program of its own, as a caller would write it: an
operand of a kind × a reduction × a transformation, against the same in float64 that fuses nothing.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import scores
from attnlab.core import opaque
from attnlab.models.alignment import align, blend
from attnlab.ops import routes
from attnlab.testing import Sizes
from tests.daily import daily
from tests.mechanism_cases import MECHANISMS, Mechanism

Arrays = dict[str, Any]

# A reduction is fused from 4096 elements on. So few queries are attended densely by default.
SIZES = Sizes(batch=2, queries=31, keys=61, width=13, value_width=17)


class Subject(NamedTuple):
    """A function of named arrays, and those of them that the cases replace, [B, length, ...]."""

    apply: Callable[[Arrays], jax.Array]
    make: Callable[[], Arrays]
    operands: tuple[str, ...]


def of_mechanism(mechanism: Mechanism) -> Subject:
    together = set(mechanism.queries) & set(mechanism.keys)
    sizes = SIZES._replace(queries=SIZES.keys) if together else SIZES
    return Subject(
        lambda arrays: mechanism.apply(arrays, None),
        lambda: mechanism.make(np.random.default_rng(0), sizes),
        mechanism.batched,
    )


def of_module(module, *names: str) -> Subject:
    """Of inputs of 24 numbers a token; the parameters are arrays too."""

    def make():
        rng = np.random.default_rng(0)
        lengths = {"x": SIZES.keys, "query": SIZES.queries, "key": SIZES.keys}
        inputs = {name: rng.normal(size=(SIZES.batch, lengths[name], 24)) for name in names}
        variables = module.init(jax.random.key(0), *(jnp.float32(x) for x in inputs.values()))
        return inputs | {"variables": variables}

    def apply(arrays):
        return module.apply(arrays["variables"], *(arrays[name] for name in names))

    return Subject(apply, make, names)


def of_function(function, *shapes: tuple[int, ...]) -> Subject:
    named = {f"x{i}": shape for i, shape in enumerate(shapes)}

    def make():
        rng = np.random.default_rng(0)
        return {name: rng.normal(size=shape) for name, shape in named.items()}

    return Subject(lambda arrays: function(*(arrays[name] for name in named)), make, tuple(named))


def grouped(**options) -> attnlab.MultiHeadAttention:
    return attnlab.MultiHeadAttention(num_heads=6, num_kv_heads=2, qkv_features=48, **options)


SUBJECTS = {mechanism.name: of_mechanism(mechanism) for mechanism in MECHANISMS} | {
    "weights": of_function(
        lambda q, k: attnlab.attention_weights(scores.Dot(), q, k), (2, 31, 6, 13), (2, 61, 3, 13)
    ),
    "one query": of_function(
        attnlab.dot_product_attention, (2, 1, 30, 13), (2, 61, 5, 13), (2, 61, 5, 79)
    ),
    "align and blend": of_function(
        lambda q, k, v: blend(align(scores.Dot(), q, k, jnp.array([61, 47])), v),
        *((2, 61, width) for width in (13, 13, 53)),
    ),
    "MultiHeadAttention": of_module(grouped(rotary=True), "query", "key"),
    "MultiHeadAttention, causal dense": of_module(
        grouped(
            route=routes.AllPairs(implementation="dense"),
            position_bias=attnlab.RelativePositionBias(),
        ),
        "x",
    ),
    "AdditiveAttention": of_module(attnlab.AdditiveAttention(features=24), "query", "key"),
    "MultiplicativeAttention": of_module(attnlab.MultiplicativeAttention(), "query", "key"),
    "LSHSelfAttention": of_module(
        attnlab.LSHSelfAttention(num_heads=3, route=routes.LSH(chunk_size=8)), "x"
    ),
}

NOTHING_FUSED = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_backend_optimization_level": 0}
KINDS = {
    "constant": jnp.ones_like,
    "zero": jnp.zeros_like,
    "one number a row": lambda x: jnp.broadcast_to(x[..., :1], x.shape),
    "one row": lambda x: jnp.broadcast_to(x[:, :1], x.shape),
    "one-hot": lambda x: jnp.broadcast_to(
        jnp.expand_dims(
            jnp.eye(x.shape[1], x.shape[-1], dtype=x.dtype), (0, *range(2, x.ndim - 1))
        ),
        x.shape,
    ),
}
REDUCTIONS = {
    "sum": lambda y, along: y.sum(),
    "squares": lambda y, along: (y * y).sum(),
    "weighted": lambda y, along: (y * along).sum(),
    "mean": lambda y, along: y.mean(-1).sum(),
    "max": lambda y, along: y.max(),
}
TRANSFORMS = {
    "jit": lambda reduced, arrays: reduced(arrays),
    "grad": lambda reduced, arrays: jax.grad(reduced)(arrays),
    # as who clips by the norm sums them
    "norms": lambda reduced, arrays: jax.tree.map(
        lambda g: (g * g).sum(), jax.grad(reduced)(arrays)
    ),
    "vmap": lambda reduced, arrays: jax.vmap(reduced)(
        jax.tree.map(lambda x: jnp.stack([x, x]), arrays)
    ),
}


def error(subject: Subject, operand: str, kind: str, reduction: str, transform: str) -> float:
    """Largest error of the float32 program, relative to the largest number of its float64 twin."""
    arrays = subject.make()
    shape = jax.eval_shape(subject.apply, jax.tree.map(jnp.float32, arrays)).shape
    along = np.random.default_rng(1).normal(size=shape)

    def program(arrays, along):
        def reduced(arrays):
            replaced = arrays | {operand: KINDS[kind](arrays[operand])}
            return REDUCTIONS[reduction](subject.apply(replaced), along)

        return TRANSFORMS[transform](reduced, arrays)

    def run(dtype, **options):
        typed = jax.tree.map(lambda x: jnp.asarray(x, dtype), (arrays, along))
        return jax.tree.map(np.asarray, jax.jit(program, **options)(*typed))

    got = run(jnp.float32)
    with jax.enable_x64(True):
        want = run(jnp.float64, compiler_options=NOTHING_FUSED)
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(
        float(np.abs(x - y).max() / max(1.0, np.abs(y).max())) if np.isfinite(x).all() else np.inf
        for x, y in pairs
    )


def some_cases(number: int) -> list[tuple[str, ...]]:
    """As many cases of each subject."""
    rng = random.Random(0)
    cases = []
    for name, subject in SUBJECTS.items():
        for _ in range(number):
            reduction = rng.choice(list(REDUCTIONS))
            # Of numbers that are equal but for rounding, another one is the largest.
            known = ["jit", "vmap"] if reduction == "max" else list(TRANSFORMS)
            kind, transform = rng.choice(list(KINDS)), rng.choice(known)
            cases.append((name, rng.choice(subject.operands), kind, reduction, transform))
    return cases


# Each was infinite or off by factors once.
WRONG_ONCE = [
    ("scaled_dot-dense", "v", "constant", "sum", "jit"),
    ("dot-dense", "k", "constant", "sum", "norms"),
    ("additive-dense", "v", "one number a row", "mean", "vmap"),
    ("one query", "x2", "constant", "mean", "vmap"),
]


@pytest.mark.parametrize(
    ("name", "operand", "kind", "reduction", "transform"),
    daily(WRONG_ONCE + some_cases(2), *WRONG_ONCE),
)
def test_a_reduction_is_that_of_float64(name, operand, kind, reduction, transform):
    assert error(SUBJECTS[name], operand, kind, reduction, transform) < 1e-3


def test_the_check_before_an_experiment_sees_what_is_wrong_without_opaque(monkeypatch):
    """If it sees nothing any more, XLA is mended, and `opaque` can go."""
    assert opaque.reductions_are_right()
    monkeypatch.setattr(opaque, "opaque", lambda x: x)
    assert not opaque.reductions_are_right()
