"""Exact attention of few queries over many keys, as while decoding: keys stay as they lie.

The other engines want lengths last, so keys and values are transposed as a whole, which for one
query is the work: a cache is copied for each token. Here a block of keys is cut from [*B, S, K, H]
and transposed within the cache of the processor, or not at all (`one_query`), and what the mask
rules out is never read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attnlab.biases import as_bias
from attnlab.core.axes import HeadLayout
from attnlab.devices.meshes import vary_like
from attnlab.devices.split import current
from attnlab.ops import one_query
from attnlab.ops.blockwise.engine import OnlineSoftmax, key_range, visible_logits, whole_blocks
from attnlab.ops.kernels.call import Call
from attnlab.ops.layout import merge_output, prepare
from attnlab.scores import Concat, Cosine, Dot, General, NormalizedAdditive, Score

_MOST_QUERIES = 8
_BLOCK = 256  # keys
# Those that look at one position alone; a user's may want all keys.
_PREPARED_BY_BLOCK = [x.prepare for x in (Score, Dot, General, Cosine, NormalizedAdditive, Concat)]


def serves(call: Call) -> bool:
    """Whether the call has few queries, and keys of which a block can be prepared alone."""
    num_queries, num_keys = call.lengths
    by_block = type(call.score).prepare in _PREPARED_BY_BLOCK and call.score.max_keys is None
    fits = num_queries <= _MOST_QUERIES and num_keys > _BLOCK
    return by_block and fits and call.dropout_rate == 0.0 and current() is None


def attend(call: Call, engine: Callable[[Call], jax.Array]) -> jax.Array:
    """The context [*B, T, N, D]; a gradient is that of the engine, whose forward pass it takes.

    Time O(T·S) less the blocks that the mask rules out; memory O(T + block).
    """

    def with_arrays(*arrays) -> Call:
        names = ("score", "q", "k", "v", "mask", "bias")
        return dataclasses.replace(call, **dict(zip(names, arrays, strict=True)))

    @jax.custom_vjp
    def context(*arrays):
        return _context(with_arrays(*arrays))

    def forward(*arrays):
        return jax.vjp(lambda *arrays: engine(with_arrays(*arrays)), *arrays)

    def backward(pull_back, dcontext):
        return pull_back(dcontext)

    context.defvjp(forward, backward)
    arrays = call.score, call.q, call.k, call.v, call.mask, call.bias
    return context(*vary_like(arrays))


def _context(call: Call) -> jax.Array:
    q, k, v, precision = call.q, call.k, call.v, call.precision
    layout = HeadLayout.of(q, k)
    num_queries, num_keys = layout.num_queries, layout.num_keys
    mask = None if call.mask is None else call.mask.in_layout(layout)
    bias = as_bias(call.bias)
    bias = None if bias is None else bias.in_layout(layout)
    q_positions = jnp.arange(num_queries)
    first, stop = (0, num_keys) if mask is None else key_range(mask, q_positions, num_keys)

    def cut(x, start):  # [*B, S, K, H] to [*B, block, K, H]
        return jax.lax.dynamic_slice_in_dim(x, start, _BLOCK, x.ndim - 3)

    def prepare_block(start):  # keys and values [B, K, 1, block, H]
        return prepare(call.score, q, cut(k, start), cut(v, start), None, None, precision)

    once = prepare_block(0)  # of the queries; those of later blocks are not computed
    alone = one_query.OneQuery.of(once, precision) if one_query.serves(call) else None

    def logits_and_values(start):
        if alone is not None:
            keys = one_query.side_by_side(cut(k, start))
            return alone.logits(keys), one_query.side_by_side(cut(v, start))
        x = prepare_block(start)
        return once.score.logits(once.q, x.k, precision=precision), x.v

    def add_block(j, softmax):
        start = jnp.minimum(j * _BLOCK, num_keys - _BLOCK)  # the last block ends with the keys
        logits, values = logits_and_values(start)  # logits: [B, K, G, T, block]
        real = start + jnp.arange(_BLOCK) >= j * _BLOCK
        logits = visible_logits(logits, bias, mask, 0, start, real)
        return softmax.add(logits, values, precision=precision, mean=alone and alone.mean)

    dtype = jnp.promote_types(v.dtype, jnp.float32)
    width = v.shape[-1] if alone is None else v.shape[-1] * layout.num_kv_heads
    softmax = OnlineSoftmax.start(once.q.shape[:-1], width, dtype)
    blocks = whole_blocks(first, stop, _BLOCK)
    softmax = jax.lax.fori_loop(*blocks, add_block, vary_like(softmax, once.q))
    context = softmax.finish()[0] if alone is None else alone.own(softmax.finish()[0])
    return merge_output(context.astype(v.dtype), layout.batch_shape)
