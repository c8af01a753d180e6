"""Σ w·tanh(q + k) against NumPy, where exponentials would overflow too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.scores.tanh_sum import tanh_sum
from tests import oracle
from tests.daily import daily


@functools.cache
def compiled():
    def run(q, k, w, dlogits):
        logits, pull_back = jax.vjp(tanh_sum, q, k, w)
        return logits, *pull_back(dlogits)

    return jax.jit(run)


def true(q, k, w, dlogits):
    """In float64, from the arrays as they were rounded."""
    q, k, w, dlogits = (np.asarray(x, np.float64) for x in (q, k, w, dlogits))
    tanh = np.tanh(q[:, None] + k[None])
    slope = dlogits[..., None] * w / np.cosh(np.clip(q[:, None] + k[None], -300, 300)) ** 2
    return tanh @ w, slope.sum(1), slope.sum(0), np.einsum("ij,ijh->h", dlogits, tanh)


def check(q, k, w, dlogits, dtype):
    q, k, w = (jnp.asarray(x, dtype) for x in (q, k, w))
    dlogits = jnp.asarray(dlogits, jnp.float32)
    eps = float(jnp.finfo(dtype).eps)
    found = compiled()(q, k, w, dlogits)
    names = ("logits", "dq", "dk", "dw")
    dtypes = (jnp.float32, dtype, dtype, dtype)
    terms = np.abs(np.asarray(w, np.float64)).sum() * max(np.abs(dlogits).sum(), 1)
    for name, got, want, kind in zip(names, found, true(q, k, w, dlogits), dtypes, strict=True):
        assert got.dtype == kind, name
        rounding = eps if kind == dtype else 0
        # 1 − 2/(1 + x) is off by an absolute unit of float32, not a relative one.
        budget = rounding * np.abs(want).max() + 2.0**-22 * terms
        assert oracle.error(got, want) <= budget, name


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(
    ("q_at", "k_at"),
    [
        (0, 0),
        (50, -45),  # e^{100}·e^{−90}: one factor is no float32
        (28, -26),  # products, of factors far from 1
        (28, -37),
        (-50, 45),
        (45, -50),
        (-45, 44),
        (50, 50),
        (-50, -50),
        (25, 60),  # the product is infinite
        (40, -40),
        (33, -60),
        (88, -88),
        (1e4, -1e4),
        (-1e4, 1e4),
        (1e4, 1e4),
        (-1e4, 0),
        (1e30, -1e30),
    ],
)
@pytest.mark.parametrize("queries", [7, 1])
def test_everywhere(queries, q_at, k_at, dtype):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(queries, 5)) + q_at, rng.normal(size=(11, 5)) + k_at
    check(q, k, rng.normal(size=5), rng.normal(size=(queries, 11)), dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("queries", [7, 1])
def test_float64_to_its_own_rounding(queries):
    """Also where float32 would saturate: −33 against 43 is tanh(10) there, here not even near."""
    rng = np.random.default_rng(4)
    # The narrow ones leave no pair of two far ones, which would send the block to the direct form.
    wide = ((0, 0), (50, -33), (43, -32), (152, -149), (-170, 150), (400, -400))
    cases = [(*at, 1.0) for at in wide] + [(43, -32, 0.1), (152, -149, 0.1)]
    for q_at, k_at, spread in cases:
        arrays = (spread * rng.normal(size=(n, 5)) + at for n, at in ((queries, q_at), (11, k_at)))
        arrays = (*arrays, rng.normal(size=5), rng.normal(size=(queries, 11)))
        for got, want in zip(compiled()(*map(jnp.asarray, arrays)), true(*arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14, err_msg=f"{q_at} {k_at}")


def test_saturated_units_are_exactly_one_with_gradient_zero():
    q, k, w = jnp.full((3, 2), 1e4), jnp.array([[50.0] * 2, [-2e4] * 2]), jnp.ones(2)
    logits, dq, dk, dw = compiled()(q, k, w, jnp.ones((3, 2)))
    np.testing.assert_array_equal(logits, [[2, -2]] * 3)
    np.testing.assert_array_equal(dq, 0)
    np.testing.assert_array_equal(dk, 0)
    np.testing.assert_array_equal(dw, 0)


def test_a_mixture_of_small_and_extreme_units():
    """One far pair sends the block to the direct form; the near ones must not notice."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(7, 5)), rng.normal(size=(11, 5))
    q[2, 1], k[3, 1], q[4, 0] = 90, -89, -70
    check(q, k, rng.normal(size=5), rng.normal(size=(7, 11)), jnp.float32)


@pytest.mark.parametrize("hidden", daily([1, 3, 4, 16, 17, 37], 1, 17))
def test_any_hidden_width(hidden):
    """The groups of hidden units need not divide the width."""
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(3, hidden)), rng.normal(size=(5, hidden))
    check(q, k, rng.normal(size=hidden), rng.normal(size=(3, 5)), jnp.float32)


@pytest.mark.parametrize("queries", [7, 1])
def test_leading_axes_broadcast_and_their_gradients_sum(queries):
    rng = np.random.default_rng(3)
    q, k, w = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((2, 1, queries, 5), (1, 3, 11, 5), (3, 5))
    )
    dlogits = jnp.asarray(rng.normal(size=(2, 3, queries, 11)), jnp.float32)
    logits, dq, dk, dw = compiled()(q, k, w, dlogits)
    parts = [[true(q[b, 0], k[0, n], w[n], dlogits[b, n]) for n in range(3)] for b in range(2)]
    logits_true, dq_true, dk_true, dw_true = (
        np.array([[parts[b][n][i] for n in range(3)] for b in range(2)]) for i in range(4)
    )
    np.testing.assert_allclose(logits, logits_true, atol=1e-5)
    np.testing.assert_allclose(dq, dq_true.sum(1, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(dk, dk_true.sum(0, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(dw, dw_true.sum(0), atol=1e-4)


def test_nan_is_not_hidden():
    q, k, w = jnp.zeros((3, 2)).at[1, 0].set(jnp.nan), jnp.zeros((5, 2)), jnp.ones(2)
    logits = compiled()(q, k, w, jnp.ones((3, 5)))[0]
    np.testing.assert_array_equal(np.isnan(logits).all(1), [False, True, False])


def test_no_third_axis_in_memory():
    """The largest array in the program is a [bq, group, bk] of few hidden units."""
    shapes = (
        jax.ShapeDtypeStruct((67, 128), jnp.float32),
        jax.ShapeDtypeStruct((71, 128), "float32"),
    )
    run = compiled().trace(
        *shapes,
        jax.ShapeDtypeStruct((128,), jnp.float32),
        jax.ShapeDtypeStruct((67, 71), jnp.float32),
    )
    whole = 67 * 71 * 128
    assert "67,128,71" not in (text := str(run.jaxpr)) and "67,71,128" not in text
    assert run.lower().compile().memory_analysis().temp_size_in_bytes < whole


def test_its_loops_run_on_all_cores():
    def both(q, k, w):
        return jax.value_and_grad(lambda *args: tanh_sum(*args).sum(), argnums=(0, 1, 2))(q, k, w)

    q, k, w = jnp.ones((67, 18)), jnp.ones((61, 18)), jnp.ones(18)
    program = jax.jit(both).lower(q, k, w).compile().as_text()
    loops = program.count(" while(")
    assert loops >= 4 and "xla_cpu_small_call" not in program, "a loop is one kernel of one core"
