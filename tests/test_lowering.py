"""Every mechanism, forward and gradient, lowers for a TPU and a CUDA GPU, from a CPU."""

import jax
import jax.numpy as jnp

from tests.mechanism_cases import MECHANISMS, over


@over(MECHANISMS)
def test_lowers(mechanism):
    arrays = mechanism.arrays(dtype=jnp.bfloat16)
    mask = mechanism.mask_of(causal=mechanism.causal)

    def loss(arrays, mask):
        return mechanism.apply(arrays, mask).astype(jnp.float32).sum()

    for function in (mechanism.apply, jax.grad(loss)):
        lowered = jax.jit(function).trace(arrays, mask).lower(lowering_platforms=("tpu", "cuda"))
        text = lowered.as_text()
        assert "bf16" in text and "dot_general" in text
