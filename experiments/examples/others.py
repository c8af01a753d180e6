"""Attention that others wrote, for `check` and `compare_lengths`, as it is published."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab import routes


def flax(q, k, v, *, mask=None):
    """`flax.linen.dot_product_attention`, which wants a mask of booleans."""
    seen = None if mask is None else mask.as_array(q.shape[1], k.shape[1])
    return nn.dot_product_attention(q, k, v, mask=seen)


@dataclasses.dataclass(frozen=True)
class ReformerPyTorch(routes.Exact):
    """reformer-pytorch's `LSHAttention`, which PyTorch runs; causal, whatever the mask.

    Args:
      num_hashes: number of hash rounds.
      bucket_size: number of positions of a bucket; two buckets divide what is padded.
    """

    num_hashes: int = 2
    bucket_size: int = 4
    shares_qk = True
    hides_future = True
    sows_weights = False

    def __call__(self, score, q, k, v, **options: Any) -> jax.Array:
        def on_host(q: np.ndarray, v: np.ndarray) -> np.ndarray:
            import torch
            from reformer_pytorch import LSHAttention

            torch.manual_seed(0)  # of the rotations
            module = LSHAttention(
                bucket_size=self.bucket_size, n_hashes=self.num_hashes, causal=True
            )
            length, width = q.shape[1], max(q.shape[-1], v.shape[-1])

            def pad(x: np.ndarray) -> Any:  # [B·N, whole buckets, width]
                more = -length % (2 * self.bucket_size), width - x.shape[-1]
                x = np.moveaxis(np.asarray(x, np.float32), 2, 1)
                x = np.pad(x, [(0, 0), (0, 0), (0, more[0]), (0, more[1])])
                return torch.from_numpy(x).flatten(0, 1)

            context = module(pad(q), pad(v))[0].detach().numpy()
            context = context.reshape(*q.shape[::2], -1, width)[:, :, :length, : v.shape[-1]]
            return np.moveaxis(context, 1, 2)

        wanted = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), jnp.float32)
        return jax.pure_callback(on_host, wanted, q, v).astype(v.dtype)

    def weights(self, score, q, k, **options: Any) -> jax.Array:
        raise NotImplementedError("PyTorch keeps its weights to itself")
