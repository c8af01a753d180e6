"""How tokens are sorted."""

import jax
import jax.numpy as jnp

from attnlab.ops.lsh.order import Geometry, sort_rounds


def test_sorts_are_not_stable():
    """XLA would give a stable one a second operand, to tell equal keys apart: there are none."""
    geometry = Geometry(8, 1, 0, None, True, True, False, True)
    buckets, valid = jnp.zeros((1, 2, 3, 16), jnp.int32), jnp.ones((1, 16), bool)
    traced = jax.make_jaxpr(lambda *x: sort_rounds(*x, geometry))
    text = str(traced(buckets, valid, jnp.zeros((1, 16), jnp.int32)))
    assert text.count("is_stable=False") == 2
    assert "is_stable=True" not in text


def test_padding_stands_last_and_sees_nothing():
    """Not even other padding, whose values may be anything."""
    geometry = Geometry(4, 1, 0, 4, True, True, False, True)
    valid = jnp.arange(12)[None] % 3 > 0
    order = sort_rounds(jnp.zeros((1, 1, 2, 12), jnp.int32), valid, None, geometry)
    assert set(order.token[0, 0, 8:].tolist()) == {0, 3, 6, 9}
    assert not order.extent[..., 8:].any() and order.extent[..., 1:8].all()
