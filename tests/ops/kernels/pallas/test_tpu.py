"""The TPU's kernel, simulated on the CPU, against the same mathematics written out in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops.kernels.pallas import tiles, tpu
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Seen, Visible
from tests.daily import daily
from tests.ops.kernels.pallas import plain_ranges

SMALL = (8, 16)
SCORES = {  # widths that the kernel pads
    "dot": dict(score="dot", width=19, value_width=7),
    "additive": dict(score="additive", width=19),
}
CASES = {  # blocks, 64-bit types allowed, the rest for random_case
    "dot, a row of ranges each, seen elsewhere": (
        SMALL,
        False,
        dict(score="dot", group=1, visible_rows=4, earlier=2, back=20, ahead=12),
    ),
    "dot, all share the keys, a band, few keys": (
        (16, 8),
        False,
        dict(score="dot", group=4, visible_rows=1, back=9, ahead=0, queries=64, keys=24),
    ),
    "additive, a band, seen elsewhere": (
        (16, 8),
        True,
        dict(score="additive", group=1, visible_rows=4, earlier=2, back=9, ahead=4),
    ),
    # More queries than lanes, more keys than the registers hold.
    "additive, blocks as on a device": (
        (256, 256),
        False,
        dict(score="additive", rows=2, visible_rows=1, queries=256, keys=512, width=3, ahead=200),
    ),
}


def config(
    blocks, *, back=None, ahead=None, dtype=jnp.float32, interpret=True, precision=None, scale=1.0
):
    return Config(*blocks, back, ahead, dtype, precision, interpret, scale)


def cast(x, dtype=jnp.float32):
    return jax.tree.map(lambda y: jnp.asarray(y, dtype if y.dtype == np.float64 else y.dtype), x)


@jax.jit
def value_and_gradients(x, visible, dout, scale):
    (out, lse), pull = jax.vjp(lambda x: plain_ranges.forward(x, visible, scale), x)
    return out, lse, pull((dout, jnp.zeros_like(lse)))[0]


def oracle(x, visible, dout, scale=1.0):
    """Context, log-sum-exp and the gradients of the inputs, in float64."""
    with jax.enable_x64(True):
        x, dout = jax.tree.map(lambda y: jnp.asarray(y, jnp.float64), (x, dout))
        return jax.tree.map(np.asarray, value_and_gradients(x, visible, dout, scale))


forward = jax.jit(tpu.forward, static_argnums=2)


@functools.partial(jax.jit, static_argnums=2)
def backward(*args):
    return Inputs(*tpu.backward(*args))


def delta_of(dout, out):
    return jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)


def assert_close(got, expected, tolerance=2e-6):
    """Within a fraction of the largest entry, array by array."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        a = np.asarray(a, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))


def assert_right(x, visible, out, lse, grads, dout, scale=1.0):
    """All results, also of queries that see nothing, against the oracle."""
    expected_out, expected_lse, expected_grads = oracle(x, visible, dout, scale)
    sees = expected_lse > tiles.MASKED
    assert sees.any()
    np.testing.assert_array_equal(lse[~sees], np.float32(tiles.MASKED))
    np.testing.assert_array_equal(out[~sees], 0)
    assert_close((out, lse[sees]), (expected_out, expected_lse[sees]))
    assert all(grad.dtype == jnp.float32 for grad in jax.tree.leaves(grads))
    assert_close(grads, expected_grads, 1e-5)


@pytest.mark.parametrize(
    "case",
    daily(CASES, "dot, all share the keys, a band, few keys", "additive, a band, seen elsewhere"),
)
def test_forward_and_gradients(case):
    blocks, wide, arguments = CASES[case]
    x, visible = plain_ranges.random_case(0, **arguments)
    x, scale = cast(x), 0.3 if x.w is None else 1.0
    settings = config(blocks, back=arguments.get("back"), ahead=arguments.get("ahead"), scale=scale)
    with jax.enable_x64(wide):
        out, lse = forward(x, visible, settings)
        dout = jnp.cos(3 * out)
        grads = backward(x, visible, settings, dout, lse, delta_of(dout, out))
    assert_right(x, visible, out, lse, grads, dout, scale)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_two_calls_with_one_log_sum_exp_add_up_to_one(score):
    x, visible = plain_ranges.random_case(1, **SCORES[score])
    x = cast(x)
    cut = visible.first + visible.extent // 3
    parts = [
        Visible(visible.first, cut - visible.first),
        Visible(cut, visible.first + visible.extent - cut),
    ]
    settings = config(SMALL)
    outs, sums = zip(*(forward(x, part, settings) for part in parts), strict=True)
    lse = jnp.logaddexp(*sums)
    out = sum(o * jnp.exp(s - lse)[..., None] for o, s in zip(outs, sums, strict=True))
    dout = jnp.cos(3 * out)
    delta = delta_of(dout, out)
    grads = [backward(x, part, settings, dout, lse, delta) for part in parts]
    expected_out, _, expected_grads = oracle(x, visible, dout)
    assert_close(out, expected_out)
    assert_close(jax.tree.map(jnp.add, *grads), expected_grads, 1e-5)


@pytest.mark.slow
def test_a_saturated_additive_score_is_plus_or_minus_w():
    x, visible = plain_ranges.random_case(2, **SCORES["additive"])
    far = np.where(np.arange(x.q.shape[1]) % 2, 1e30, -1e30)[:, None]
    x = cast(x._replace(q=np.where(np.arange(x.q.shape[2]) < 9, far, x.q)))
    out, lse = forward(x, visible, config(SMALL))
    dout = jnp.cos(3 * out)
    grads = backward(x, visible, config(SMALL), dout, lse, delta_of(dout, out))
    assert_right(x, visible, out, lse, grads, dout)
    np.testing.assert_array_equal(grads.q[..., :9], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "dout_dtype"), [("dot", jnp.bfloat16), ("additive", jnp.float32)]
)
def test_bfloat16_with_sums_in_float32(score, dout_dtype):
    x, visible = plain_ranges.random_case(3, score=score, earlier=1)
    x = cast(x, jnp.bfloat16)._replace(w=None if x.w is None else cast(x.w))
    settings = config(SMALL, dtype=jnp.bfloat16)
    out, lse = forward(x, visible, settings)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    dout = jnp.cos(3 * out.astype(jnp.float32))
    expected_out, expected_lse, expected_grads = oracle(x, visible, dout)
    sees = expected_lse > tiles.MASKED
    assert_close(out, expected_out, 1e-2)
    assert_close(lse[sees], expected_lse[sees], 1e-5)
    grads = backward(x, visible, settings, dout.astype(dout_dtype), lse, delta_of(dout, out))
    assert_close(grads, expected_grads, 2e-2)


@pytest.mark.parametrize("score", daily(["dot", "additive"], "dot"))
def test_what_nobody_sees_does_not_show(score):
    """In blocks that are visited it may be huge; what is in others is not even multiplied by 0."""
    x, _ = plain_ranges.random_case(4, **SCORES[score])
    shape = 2, x.q.shape[1]
    first, extent = np.full(shape, 18, np.int32), np.full(shape, 9, np.int32)
    extent[:, 8:16] = 0  # a block of queries that see nothing
    visible = Visible(first, extent)
    key = np.arange(x.k.shape[1])[:, None]
    hide = np.where((key < 16) | (key >= 32), np.nan, np.where((key < 18) | (key >= 27), 3e38, 0))
    query = np.arange(x.q.shape[1])[:, None]
    blind = np.where((query >= 8) & (query < 16), np.nan, 0)
    hidden = cast(x._replace(k=x.k + hide, v=x.v + hide, q=x.q + blind))
    x = cast(x)
    dout = cast(np.cos(np.arange(x.v.shape[2]) + query + np.zeros((x.q.shape[0], 1, 1))))

    def everything(x):
        out, lse = forward(x, visible, config(SMALL))
        return out, lse, backward(x, visible, config(SMALL), dout, lse, delta_of(dout, out))

    got = everything(hidden)
    jax.tree.map(np.testing.assert_array_equal, got, everything(x))
    np.testing.assert_array_equal(got[0][:, 8:16], 0)
    np.testing.assert_array_equal(got[1][:, 8:16], np.float32(tiles.MASKED))


def shapes(*, rows=8, queries=8192, keys=8192, width=64, dtype=jnp.float32, additive=False, v=1):
    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    x = Inputs(
        floats(rows, queries, width),
        floats(rows, keys, width),
        floats(rows, keys, width),
        floats(rows, width) if additive else None,
    )
    seen = Seen(ints(v, 7, keys), ints(v, 7, queries), ints(v, 7, queries))
    return x, Visible(ints(v, queries), ints(v, queries), seen)


def refusal(blocks=(512, 512), settings=None, **arguments):
    settings = config(blocks, **{"interpret": False, **(settings or {})})
    return tpu.refusal(*shapes(**arguments), settings)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("additive", [False, True])
def test_serves(dtype, additive):
    highest = {"precision": jax.lax.Precision.HIGHEST}
    for width in (8, 64, 128):
        arguments = {"dtype": dtype, "additive": additive, "width": width}
        for blocks in ((128, 128), (256, 256), (512, 512)):
            assert refusal(blocks, highest, **arguments) is None
    assert refusal((256, 256), width=1024, dtype=dtype, additive=additive) is None
    assert refusal(queries=2**20, keys=2**20, rows=8, v=8, dtype=dtype) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dtype=jnp.float16), "serves float32 and bfloat16 on TPU, not float16"),
        (dict(blocks=(64, 128)), "multiples of 128 as block_q and block_k on TPU; got (64, 128)"),
        (dict(blocks=(1024, 1024)), "MiB of vector memory for blocks of (1024, 1024)"),
        (dict(width=1024), "take smaller ones"),
        (dict(width=512, additive=True), "take smaller ones"),
        (
            dict(blocks=(128, 512), queries=2**20, keys=2**20, rows=16, v=16),
            "ranges of 16 rows of 8192 blocks in a TPU's scalar memory; take larger blocks",
        ),
        (dict(settings={"precision": jax.lax.Precision.HIGH}), "DEFAULT and HIGHEST on TPU, not"),
    ],
)
def test_refuses(arguments, message):
    assert message in refusal(**arguments)


def test_bfloat16_needs_a_tpu_that_multiplies_it():
    for kind, serves in (("TPU v3", False), ("TPU v5 lite", True)):
        with compiling_for(Platform("tpu", kind)):
            assert (refusal(dtype=jnp.bfloat16) is None) is serves
            assert refusal(dtype=jnp.float32) is None


def test_a_simulation_takes_any_block():
    assert refusal((8, 8), {"interpret": True}) is None
    assert "float64" in refusal((8, 8), {"interpret": True}, dtype=np.dtype("float64"))
