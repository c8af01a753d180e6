"""What a model's layers give their attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import routes
from attnlab.models.activations import shared_projections
from attnlab.models.transformer import TransformerConfig, TransformerLM

CONFIG = TransformerConfig(11, num_layers=11, width=6, hidden=7, num_heads=3, dropout_rate=0.0)
TOKENS = jnp.arange(5)[None] + 4


@pytest.mark.slow
def test_layers_are_in_the_order_of_their_numbers():
    model = TransformerLM(CONFIG, CONFIG.attention(routes.LSH(1, num_buckets=2, chunk_size=4)))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    variables["params"]["decoder"]["layer_10"]["attention"]["value"]["kernel"] *= 0
    qk, v = jax.jit(lambda x: shared_projections(model, x, TOKENS))(variables)
    assert qk.shape == v.shape == (11, 1, 5, 3, 2)
    zero = [not np.any(layer) for layer in v]
    assert zero == [False] * 10 + [True]
