"""`implementation="pallas"` of exact attention: masks as ranges, heads as rows, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import Pallas, masks, scores
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops.attention import attention
from attnlab.ops.kernels.pallas import exact
from tests.daily import daily
from tests.ops.kernels.pallas import plain_kernels
from tests.trees import assert_close

V5E = Platform("tpu", "TPU v5 lite")
MASKS = {
    "none": None,
    "causal": masks.Causal(),
    "causal, an offset": masks.Causal(3),
    "causal, an offset an example": masks.Causal(jnp.array([0, 5])),
    "window": masks.Window(5, 2),
    "window into the future": masks.Window(None, 2, 1),
    "causal and padding": masks.Causal() & masks.Padding(jnp.array([7, 20])),
    "padding of both": masks.Padding(jnp.array([7, 0]), jnp.array([3, 8])),
    "one padding for all": masks.Padding(7) & masks.Window(4, 4),
}


def arrays(seed=0, queries=19, keys=23, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = (2, queries, 4, 6), (2, keys, 2, 6), (2, keys, 2, 5)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def score(name):
    rng = np.random.default_rng(1)
    if name == "dot":
        return scores.Dot()
    if name == "general":
        return scores.General(jnp.asarray(rng.normal(size=(4, 6, 6)) / 4, jnp.float32))
    shape = (6,) if name == "additive, one w" else (4, 6)
    return scores.Additive(jnp.asarray(rng.normal(size=shape), jnp.float32))


def output_and_gradients(implementation, mask, name):
    q, k, v = arrays()

    def attend(score, q, k, v):
        return attention(score, q, k, v, mask=mask, implementation=implementation)

    @jax.jit
    def run(*arguments):
        out, pull_back = jax.vjp(attend, *arguments)
        g = np.random.default_rng(2).normal(size=out.shape)
        return jax.tree.leaves((out, pull_back(jnp.asarray(g, out.dtype))))

    return run(score(name), q, k, v)


@pytest.mark.parametrize(
    ("name", "mask"),
    daily(
        [
            *(("dot", mask) for mask in MASKS),
            *((name, "causal and padding") for name in ("general", "additive", "additive, one w")),
        ],
        ("dot", "window"),
        ("dot", "padding of both"),
        ("additive", "causal and padding"),
    ),
)
def test_masks_become_ranges_and_heads_rows(name, mask, monkeypatch):
    """With a plain stand-in for the kernel that also checks what a kernel is promised."""
    monkeypatch.setattr(exact, "kernels_for", lambda platform: plain_kernels)
    got = output_and_gradients(Pallas(8, 16, interpret=True), MASKS[mask], name)
    assert_close(got, output_and_gradients("dense", MASKS[mask], name), rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_the_kernel_itself(name):
    """The TPU's, interpreted."""
    mask = MASKS["causal and padding"]
    got = output_and_gradients(Pallas(8, 8, interpret=True), mask, name)
    assert_close(got, output_and_gradients("dense", mask, name), rtol=1e-4, atol=2e-5)


def test_a_scale_is_of_the_logits_not_of_queries_in_half_precision():
    """1/√6 is no power of 2: q · scale rounded to bfloat16 moves logits that are large."""
    q, k, v = (jnp.asarray(4 * x, jnp.bfloat16) for x in arrays())
    attend = functools.partial(attention, scores.Dot(), mask=masks.Window(5, 2))
    exactly = attend(*(x.astype(jnp.float32) for x in (q, k, v)), implementation="dense")

    def error(implementation):
        context = attend(q, k, v, implementation=implementation)
        return jnp.abs(context.astype(jnp.float32) - exactly).max()

    assert error(Pallas(8, 8, interpret=True)) <= error("dense")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bias": jnp.zeros((19, 23))}, "takes no bias and no dropout"),
        ({"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}, "no bias and no dropout"),
        ({"mask": masks.Segments(jnp.zeros(19, int), jnp.zeros(23, int))}, "not Segments"),
        ({"mask": masks.Explicit(jnp.ones((19, 23), bool)) & masks.Causal()}, "not Explicit"),
    ],
)
def test_refusals(options, reason):
    with compiling_for(V5E), pytest.raises(NotImplementedError, match=f'"pallas".*{reason}.*; use'):
        attention(scores.Dot(), *arrays(), **options, implementation="pallas")


def test_location_is_refused():
    w = jnp.ones((4, 6, 23))
    with compiling_for(V5E), pytest.raises(NotImplementedError, match="not Location"):
        attention(scores.Location(w), *arrays(), implementation="pallas")


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (Platform("cpu", "cpu"), "is for TPU and NVIDIA GPU, not for cpu"),
        (Platform("rocm", "MI300"), "not for rocm"),
        (Platform("cuda", "NVIDIA A100", (8, 0)), "H100.*not for NVIDIA A100"),
    ],
)
def test_platforms_without_a_kernel(platform, reason):
    call = functools.partial(attention, scores.Dot(), *arrays(), implementation="pallas")
    with compiling_for(platform), pytest.raises(NotImplementedError, match=reason):
        call()


@pytest.mark.parametrize("size", [0, -8, 12, 8.0])
def test_block_sizes_are_checked(size):
    with pytest.raises(ValueError, match="block_q counts positions, a positive multiple of 8; got"):
        Pallas(block_q=size)
