"""The products of projections and logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.devices import platforms
from attnlab.models.output import product, wide_product

LAST_BY_FIRST = ((2,), (0,)), ((), ())


def test_on_a_cpu_of_one_device_alone_a_product_is_one_of_matrices(monkeypatch):
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)

    def factors():
        """The rows of the one product that is traced."""
        traced = jax.make_jaxpr(lambda x, y: product(x, y, LAST_BY_FIRST))(x, kernel)
        (shape,) = [e.invars[0].aval.shape for e in traced.eqns if "dot" in e.primitive.name]
        return shape

    assert factors() == (2, 3, 5)  # the tests have two devices
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert factors() == (6, 5)
    monkeypatch.setattr(jax, "device_count", lambda: pytest.fail("a target asks for no device"))
    for target in (platforms.Platform("tpu", "TPU v5 lite"), platforms.Platform("cpu")):
        with platforms.compiling_for(target):
            assert factors() == (2, 3, 5)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    np.testing.assert_allclose(product(x, kernel, LAST_BY_FIRST), x @ kernel, rtol=1e-6)
    half = jnp.asarray(x, jnp.bfloat16)
    assert wide_product(half, kernel.astype(jnp.bfloat16), LAST_BY_FIRST).dtype == jnp.float32
