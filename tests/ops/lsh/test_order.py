"""How tokens are sorted."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.ops.lsh.cross_order import CrossVisibility, sort_queries_and_keys
from attnlab.ops.lsh.order import Geometry, sort_rounds


def test_sorts_are_not_stable():
    """XLA would give a stable one a second operand, to tell equal keys apart: there are none."""
    geometry = Geometry(8, 1, 0, 8, True, True)
    buckets, valid = jnp.zeros((1, 2, 3, 16), jnp.int32), jnp.ones((1, 16), bool)
    traced = jax.make_jaxpr(lambda *x: sort_rounds(*x, geometry))
    text = str(traced(buckets, valid, jnp.zeros((1, 16), jnp.int32)))
    assert text.count("is_stable=False") == 2
    assert "is_stable=True" not in text


def test_padding_stands_last_and_sees_nothing():
    """Not even other padding, whose values may be anything."""
    geometry = Geometry(4, 1, 0, 4, True, True)
    valid = jnp.arange(12)[None] % 3 > 0
    order = sort_rounds(jnp.zeros((1, 1, 2, 12), jnp.int32), valid, None, geometry)
    assert set(order.token[0, 0, 8:].tolist()) == {0, 3, 6, 9}
    assert not order.extent[..., 8:].any() and order.extent[..., 1:8].all()


def test_a_window_shows_as_many_slots_on_both_sides():
    """In one bucket, where slots are positions; a query of its own stands behind its key."""
    geometry = Geometry(4, 1, 1, 2, False, True)
    everyone, positions = jnp.ones((1, 12), bool), jnp.arange(12)
    one_bucket = jnp.zeros((1, 1, 1, 12), jnp.int32)
    shared = sort_rounds(one_bucket, None, None, geometry)
    seen = CrossVisibility(everyone, everyone, None, None, positions[None])
    apart = sort_queries_and_keys(one_bucket, one_bucket, seen, geometry)
    for order, before, after in ((shared, 2, 3), (apart, 1, 3)):
        first, extent = (x[0, 0][order.slot[0, 0]] for x in (order.first, order.extent))
        np.testing.assert_array_equal(first, np.maximum(positions - before, 0))
        np.testing.assert_array_equal(first + extent, np.minimum(positions + after, 12))
