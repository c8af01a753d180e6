"""The GPU's kernel, simulated on the CPU, against the same mathematics written out in float64.

The simulation computes tanh and exp exactly; what the hardware's approximations do, only a GPU can
tell.
"""

import concurrent.futures
import multiprocessing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops.kernels.pallas import gpu, tiles
from attnlab.ops.kernels.pallas.gpu.launch import simulator
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Seen, Visible
from tests.ops.kernels.pallas import plain_ranges

simulated = pytest.mark.skipif(
    simulator() is None, reason="Pallas has no interpreter of GPU kernels before jax 0.11"
)
# blocks, type, the rest for random_case; hidden units are few, as the simulation is slow.
CASES = {
    "dot, two rows of queries to a row of keys": (
        (128, 64), jnp.bfloat16, dict(score="dot", width=64, rows=4, visible_rows=1, queries=128),
    ),
    "dot, a row of ranges each, seen elsewhere": (
        (64, 128), jnp.float16,
        dict(score="dot", width=128, rows=2, group=1, queries=64, earlier=2),
    ),
    "dot, a band": (
        (64, 64), jnp.bfloat16,
        dict(score="dot", width=64, rows=1, group=1, visible_rows=1, queries=192, keys=192,
             back=40, ahead=9),
    ),
    "additive, two rows of queries to a row of keys": (
        (64, 64), jnp.bfloat16, dict(score="additive", width=8, rows=2, visible_rows=1, queries=64),
    ),
    "additive, seen elsewhere": (
        (128, 128), jnp.float16,
        dict(score="additive", width=8, rows=1, group=1, visible_rows=1, queries=128, earlier=2),
    ),
}  # fmt: skip


def config(blocks, *, back=None, ahead=None, dtype=jnp.bfloat16, interpret=True, scale=1.0):
    return Config(*blocks, back, ahead, dtype, None, interpret, scale)


def case(seed, dtype, *, keys=128, value_width=64, **arguments):
    x, visible = plain_ranges.random_case(seed, keys=keys, value_width=value_width, **arguments)
    visible.extent[:, ::7] = 0
    w = None if x.w is None else jnp.asarray(x.w, jnp.float32)
    return jax.tree.map(lambda y: jnp.asarray(y, dtype), x)._replace(w=w), visible


def oracle(x, visible, dout, lse, delta, scale):
    """Context, log-sum-exp and the gradients with the given log-sum-exp and δ."""

    def objective(x):
        """Σ_i Σ_j P_ij (do_i·v_j − δ_i) with P = e^{s − lse}: its gradients are the kernel's."""
        out, own = plain_ranges.forward(x, visible, scale)
        return jnp.sum(jnp.exp(own - lse) * (jnp.sum(out * dout, axis=2) - delta))

    return *plain_ranges.forward(x, visible, scale), jax.grad(objective)(x)


def in_float64(f, *args):
    with jax.enable_x64(True):
        args = jax.tree.map(
            lambda y: (
                jnp.asarray(y, jnp.float64)
                if jnp.issubdtype(jnp.result_type(y), jnp.floating)
                else y
            ),
            args,
        )
        return jax.tree.map(np.asarray, jax.jit(f)(*args))


@pytest.fixture(scope="module")
def process():
    """Another process with more threads: warpgroups that wait block those of XLA, one a core."""
    context = multiprocessing.get_context("spawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPROC", "16")
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        with concurrent.futures.ProcessPoolExecutor(1, context) as process:
            yield process


def everything(x, visible, settings, dout, lse, delta):
    forward, backward = (jax.jit(f, static_argnums=2) for f in (gpu.forward, gpu.backward))
    # One after another: two kernels at once would block each other.
    out, own = jax.block_until_ready(forward(x, visible, settings))
    grads = backward(x, visible, settings, dout, lse, delta)
    return jax.tree.map(np.asarray, (out, own, Inputs(*grads)))


def simulate(process, *args):
    return process.submit(everything, *args).result(timeout=60)


def assert_within(got, exact, plain, dtype):
    """At most twice the error of the plain version in the same type, and a rounding."""
    for a, b, c in zip(*(jax.tree.leaves(y) for y in (got, exact, plain)), strict=True):
        assert a.shape == b.shape
        a, c = np.asarray(a, np.float64), np.asarray(c, np.float64)
        budget = 2 * np.abs(c - b).max() + float(jnp.finfo(dtype).eps) * np.abs(b).max()
        assert np.abs(a - b).max() <= budget


@simulated
@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients(name, process):
    """Also with a log-sum-exp over more keys than these, and for queries that see nothing."""
    blocks, dtype, arguments = CASES[name]
    x, visible = case(0, dtype, **arguments)
    scale, back, ahead = 0.3 if x.w is None else 1.0, arguments.get("back"), arguments.get("ahead")
    settings = config(blocks, back=back, ahead=ahead, dtype=dtype, scale=scale)
    rng = np.random.default_rng(1)
    dout = jnp.asarray(rng.normal(size=(*x.q.shape[:2], 64)), dtype)
    _, own = in_float64(plain_ranges.forward, x, visible, scale)
    lse = jnp.asarray(np.logaddexp(own, rng.normal(size=own.shape)), jnp.float32)
    delta = jnp.asarray(rng.normal(size=lse.shape), jnp.float32)

    got = simulate(process, x, visible, settings, dout, lse, delta)
    of_gradients = dtype if x.w is None else jnp.float32
    assert (got[0].dtype, got[1].dtype) == (dtype, jnp.float32)
    assert all(y.dtype == of_gradients for y in jax.tree.leaves(got[2]))
    exact = in_float64(oracle, x, visible, dout, lse, delta, scale)
    plain = jax.jit(oracle)(x, visible, dout, lse, delta, scale)
    sees = own > tiles.MASKED
    assert sees.any()
    assert_within(got, exact, plain, dtype)
    np.testing.assert_allclose(got[1][sees], own[sees], rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(got[1][~sees], np.float32(tiles.MASKED))
    for y in (got[0], got[2].q):
        np.testing.assert_array_equal(y[~sees], 0)


@simulated
@pytest.mark.parametrize(("score", "width"), [("dot", 64), ("additive", 8)])
def test_what_nobody_sees_does_not_show(score, width, process):
    """In blocks that are visited it may be huge; what is in others is not even multiplied by 0."""
    x, _ = case(
        4, jnp.bfloat16, score=score, width=width, rows=1, group=1, queries=64, keys=192
    )  # fmt: skip
    first, extent = np.full((1, 64), 66, np.int32), np.full((1, 64), 9, np.int32)
    extent[:, 40:] = 0
    key = np.arange(192)[:, None]
    outside = (key < 64) | (key >= 128)
    hide = np.where(outside, np.nan, np.where((key < 66) | (key >= 75), 1e30, 0))
    hide = jnp.asarray(hide[None], jnp.bfloat16)
    hidden = x._replace(k=x.k + hide, v=x.v + hide)
    dout = jnp.cos(jnp.arange(64.0 * 64)).reshape(1, 64, 64).astype(jnp.bfloat16)
    lse, delta = jnp.ones((1, 64)), jnp.zeros((1, 64))

    def run(x):
        return simulate(process, x, Visible(first, extent), config((64, 64)), dout, lse, delta)

    got = run(hidden)
    jax.tree.map(np.testing.assert_array_equal, got, run(x))
    np.testing.assert_array_equal(got[0][:, 40:], 0)
    for grad in (got[2].k, got[2].v):
        np.testing.assert_array_equal(grad[:, np.arange(192) >= 75], 0)
        assert np.abs(grad[:, 66:75]).min() > 0


def refusal(
    *, width=64, hidden=64, additive=False, dtype=jnp.bfloat16, blocks=(128, 64), out=jnp.bfloat16
):
    def floats(*shape, dtype=dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    x = Inputs(
        floats(2, 256, hidden),
        floats(2, 256, hidden),
        floats(2, 256, width),
        floats(2, hidden, dtype=jnp.float32) if additive else None,
    )
    visible = Visible(ints(1, 256), ints(1, 256), Seen(*(ints(1, 7, 256) for _ in range(3))))
    return gpu.refusal(x, visible, config(blocks, dtype=out, interpret=False))


def test_serves():
    for dtype in (jnp.bfloat16, jnp.float16):
        for width in (64, 128):
            assert refusal(width=width, hidden=width, dtype=dtype) is None
            assert refusal(width=width, hidden=96, additive=True, dtype=dtype) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dtype=jnp.float32), "takes bfloat16 and float16 on a GPU, not float32"),
        (dict(width=32), "takes values 64 or 128 wide on a GPU, not 32"),
        (dict(hidden=96), "takes heads 64 or 128 wide on a GPU, not 96"),
        (dict(hidden=24, additive=True), "takes 32, 64, 96 or 128 hidden units on a GPU, not 24"),
        (
            dict(width=128, hidden=128, blocks=(128, 128), out=jnp.float32),
            "has no shared memory on a GPU for blocks of 128, 128 wide, and float32",
        ),
        (dict(blocks=(256, 64)), "takes blocks of 64 or 128 on a GPU, not 256 and 64"),
    ],
)
def test_refuses(arguments, message):
    assert message in refusal(**arguments)
