"""What a type checker is told of the functions of arrays."""

from typing import assert_type

import jax

import attnlab
from attnlab import masks, scores


def contexts(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> list[jax.Array]:
    mask = masks.Causal(3) & masks.Window(8, None)
    assert_type(mask, masks.Mask)
    assert_type(attnlab.attention_weights(scores.Dot(), q, k, mask=mask), jax.Array)
    buckets = attnlab.hash_buckets(
        q, attnlab.make_rotations(w, num_heads=2, head_dim=8, num_hashes=2, num_buckets=4)
    )
    return [
        attnlab.attention(scores.Cosine(2.0), q, k, v, mask=mask, implementation="dense"),
        attnlab.dot_product_attention(q, k, v, scale=1.0, mask=mask),
        attnlab.general_attention(q, k, v, w, bias=attnlab.biases.alibi(2, 5, 5)),
        attnlab.additive_attention(q, k, v, w),
        attnlab.cosine_attention(q, k, v, scale=w),
        attnlab.concat_attention(q, k, v, w, w, w),
        attnlab.location_attention(q, v, w),
        attnlab.window_attention(q, k, v, window=(8, 0), q_offset=3),
        attnlab.lsh_attention(q, v, buckets, chunk_size=4),
    ]
