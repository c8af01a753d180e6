"""Positions: sinusoids, rotary and learned, against their papers' equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import positions

sinusoids = jax.jit(positions.sinusoids, static_argnames=("width", "max_wavelength"))
rotary = jax.jit(positions.rotary)


@pytest.mark.parametrize("first", [0, 10**6, 10**7, -(10**7), 2**31 - 40])
def test_far_positions_are_as_near_as_the_first(first):
    at = first + np.arange(37)
    angles = at[:, None] / 10000 ** (np.arange(7) / 7)
    sin, cos = np.sin(angles), np.cos(angles)
    pairs = np.stack([sin, cos], -1).reshape(37, 14)
    np.testing.assert_allclose(sinusoids(at, 14), pairs, atol=5e-7)
    one = np.repeat(np.array([1, 0], "f"), 7)
    turned = rotary(np.broadcast_to(one, (37, 1, 14)), at)[:, 0]
    np.testing.assert_allclose(turned, np.concatenate([cos, sin], -1), atol=5e-7)


def test_sinusoids_of_another_wavelength_and_of_fractions():
    got = sinusoids(np.array([0.5], "f"), 4, max_wavelength=100.0)
    np.testing.assert_allclose(
        got, [[np.sin(0.5), np.cos(0.5), np.sin(0.05), np.cos(0.05)]], rtol=1e-6
    )
    far = sinusoids(np.array([1e6 + 0.5], "f"), 2)
    np.testing.assert_allclose(far, [[np.sin(1e6 + 0.5), np.cos(1e6 + 0.5)]], atol=5e-7)


def test_rotary_turns_pairs_by_the_position():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 3, 6))
    at = np.array([[0, 1, 2, 3, 4], [7, 7, 100, 3, 0]])
    got = np.asarray(rotary(x.astype("f"), at))
    pairs = x[..., :3] + 1j * x[..., 3:]
    turned = pairs * np.exp(1j * at[..., None, None] / 10000 ** (2 * np.arange(3) / 6))
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=3e-5)


def test_rotary_keeps_dtype_and_broadcasts_positions_over_batch():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3, 5, 2, 4)), jnp.bfloat16)
    once = rotary(x, np.arange(5))
    assert once.dtype == jnp.bfloat16 and once.shape == x.shape
    each = rotary(x, np.broadcast_to(np.arange(5), (3, 5)))
    np.testing.assert_array_equal(once, each)


def test_rotary_of_float64_is_computed_in_it(x64):
    x, at = np.random.default_rng(3).normal(size=(5, 1, 4)), np.array([0, 1, 10, 1000, 100_000])
    angles = at[:, None, None] / 10000 ** (np.arange(2) / 2)
    turned = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)
    np.testing.assert_allclose(
        rotary(x, at), np.concatenate([turned.real, turned.imag], -1), atol=1e-10
    )


@pytest.mark.parametrize(
    ("dtype", "outside"), [("int8", (-1, -128)), ("int32", (200, -1)), ("uint32", (200, 2**32 - 1))]
)
@pytest.mark.parametrize(
    "function",
    [positions.learned, lambda table, at: positions.axial([table[:20], table[::20]], at)],
    ids=["learned", "axial"],
)
def test_a_position_that_a_program_does_not_know_is_nan_outside(function, dtype, outside):
    table = np.arange(1, 401, dtype="f").reshape(200, 2)
    inside = np.array([0, 127, 3], dtype)
    at = np.concatenate([inside, np.array(outside, dtype)])
    found = np.asarray(jax.jit(function)(table, at))
    np.testing.assert_array_equal(found[:3], jax.jit(lambda table: function(table, inside))(table))
    assert np.isnan(found[3:]).all()
    of_400 = jax.jit(lambda table: positions.axial([table, table[:2]], np.array([127, 3], dtype)))
    known = of_400(table)
    np.testing.assert_array_equal(known[:, :2], table[np.array([63, 1])])


def test_learned_takes_rows():
    table = jnp.arange(21.0).reshape(7, 3)
    at = jnp.array([[0, 6], [2, 2]])
    np.testing.assert_array_equal(positions.learned(table, at), np.asarray(table)[np.asarray(at)])
    np.testing.assert_array_equal(
        jax.jit(positions.learned)(table, at), np.asarray(table)[np.asarray(at)]
    )
    # Positions that a program knows are checked where it is traced.
    np.testing.assert_array_equal(
        jax.jit(lambda table: positions.learned(table, at))(table), table[at]
    )


def test_axial_positions_are_cells_of_a_grid():
    shapes = ((2, 3), (5, 1), (3, 2))
    tables = [np.arange(n * d, dtype="f").reshape(n, d) + 100 * n for n, d in shapes]
    got = np.asarray(jax.jit(positions.axial)(tables, np.arange(30).reshape(1, 30)))
    for p in range(30):
        first, second, third = p // 15, p // 3 % 5, p % 3
        want = [*tables[0][first], *tables[1][second], *tables[2][third]]
        np.testing.assert_array_equal(got[0, p], want)


def test_a_learned_table_may_begin_as_sinusoids():
    table = positions.sinusoid_init(jax.random.key(0), (7, 6), jnp.float16)
    assert table.shape == (7, 6) and table.dtype == jnp.float16
    np.testing.assert_allclose(table, sinusoids(np.arange(7), 6), atol=1e-3)
