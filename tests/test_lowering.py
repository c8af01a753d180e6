"""Every mechanism, forward and gradient, lowers for a TPU and a CUDA GPU, from a CPU."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.mechanism_cases import MECHANISMS, over


@over(MECHANISMS)
def test_lowers(mechanism):
    arrays = mechanism.arrays(dtype=jnp.bfloat16)
    mask = None
    if mechanism.mask is not None:
        visible = np.ones((mechanism.sizes().batch, mechanism.sizes().keys), bool)
        mask = mechanism.mask(visible, mechanism.causal)

    def loss(arrays, mask):
        return mechanism.apply(arrays, mask).astype(jnp.float32).sum()

    for function in (mechanism.apply, jax.grad(loss)):
        lowered = jax.jit(function).trace(arrays, mask).lower(lowering_platforms=("tpu", "cuda"))
        text = lowered.as_text()
        assert "bf16" in text and "dot_general" in text
