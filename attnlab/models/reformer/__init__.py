"""The Reformer (Kitaev, Kaiser & Levskaya 2020): reversible layers around any causal attention.

`Reformer` is called as a `TransformerLM` is, and made of the same parts. What it adds costs no
parameter: two residual streams, whose layers are undone in the backward pass (`couplings`), so that
memory does not grow with the number of scanned layers; feed-forward networks for a chunk of
positions at a time (`TransformerConfig.feed_forward_chunk`); axial positions
(`positions.axial`). Hugging Face's weights serve a model that `from_hugging_face` makes, and
`to_hugging_face` goes back.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab import routes
    >>> from attnlab.models import Reformer, TransformerConfig
    >>> config = TransformerConfig(
    ...     260, num_layers=4, width=16, hidden=32, num_heads=2, share_embeddings=False,
    ...     feed_forward_chunk=64, positions="axial", max_length=128, axial_shape=(8, 16),
    ...     axial_widths=(4, 12),
    ... )
    >>> local = config.attention(routes.Window(15, 0))
    >>> lsh = config.attention(routes.LSH(num_hashes=2, chunk_size=16))
    >>> model = Reformer(config, attention=(local, local, lsh, local))
    >>> tokens = jnp.full((1, 128), 4)
    >>> variables = model.init(jax.random.key(0), tokens)
    >>> model.apply(variables, tokens).shape
    (1, 128, 260)
"""

from attnlab.models.reformer.hugging_face import from_hugging_face, to_hugging_face
from attnlab.models.reformer.model import Reformer

__all__ = ["Reformer", "from_hugging_face", "to_hugging_face"]
