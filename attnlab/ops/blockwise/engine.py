"""The loops of blockwise attention, forward and backward, over blocks of queries and of keys."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.biases import Bias
from attnlab.core.axes import lead_with_ones
from attnlab.devices.meshes import vary_like
from attnlab.masks import Mask
from attnlab.ops import dropout
from attnlab.ops.layout import add_slice, slice_heads
from attnlab.scores import Score


class Config(NamedTuple):
    """What is static.

    Attributes:
      block_q: number of queries in a block.
      block_k: number of keys in a block.
      cpu_forward_block_q: number of queries in a block of the forward pass on a CPU.
      num_keys: number of keys that the mask knows, without padding.
      hides_padding: whether keys from `num_keys` on are padding; else there are none.
      dropout_rate: probability of dropping a weight.
      precision: precision of the matrix products.
    """

    block_q: int
    block_k: int
    cpu_forward_block_q: int
    num_keys: int
    hides_padding: bool
    dropout_rate: float
    precision: Any


class Differentiable(NamedTuple):
    """Leading axes [B, K, G], or [G], or none; T and S padded to whole blocks."""

    score: Score
    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: Bias | None


class Fixed(NamedTuple):
    """What gets no gradient, with leading axes [B|1, K|1].

    Attributes:
      mask: mask in layout, or None.
      dropout_seeds: seeds of every example and head, or None.
      starts: positions of the first query and of the first key, [1, 1, 2] int32; None = 0 and 0.
    """

    mask: Mask | None
    dropout_seeds: jax.Array | None
    starts: jax.Array | None

    @property
    def first_positions(self) -> tuple[Any, Any]:
        """Positions of the first query and of the first key."""
        return (0, 0) if self.starts is None else tuple(self.starts.reshape(2))


def forward(config: Config, x: Differentiable, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
    """Context [B, K, G, T, D] and log-sum-exp [B, K, G, T], +inf where no key is visible."""
    # On a CPU one head's block fits the cache and all heads' would not; accelerators want them all.
    return jax.lax.platform_dependent(
        x,
        fixed,
        cpu=functools.partial(_forward_slice_by_slice, config),
        default=functools.partial(_forward, config),
    )


def backward(
    config: Config,
    x: Differentiable,
    fixed: Fixed,
    rows: tuple[jax.Array, jax.Array, jax.Array],
) -> Differentiable:
    """Gradients of x, in float32 at least.

    Args:
      config: sizes of blocks, and what else is static.
      x: operands of the forward pass.
      fixed: operands that get no gradient.
      rows: gradient of the context, log-sum-exp over ALL keys of the softmax, and rowsum(do ∘ o).
    """
    return jax.lax.platform_dependent(
        x,
        fixed,
        rows,
        cpu=functools.partial(_backward_slice_by_slice, config),
        default=functools.partial(_backward, config),
    )


class OnlineSoftmax(NamedTuple):
    """A softmax over the keys so far: m and ℓ [..., bq], a [..., bq, D] in the package's terms."""

    largest: jax.Array
    total: jax.Array
    context: jax.Array

    @classmethod
    def start(cls, shape: tuple[int, ...], width: int, dtype: Any) -> OnlineSoftmax:
        """Over no keys: the largest is not −inf, as −inf − −inf would be NaN."""
        largest = jnp.full(shape, jnp.finfo(dtype).min, dtype)
        return cls(largest, jnp.zeros(shape, dtype), jnp.zeros((*shape, width), dtype))

    def add(
        self,
        logits: jax.Array,
        v: jax.Array,
        *,
        precision: Any = None,
        keys_in_a_sum: int | None = None,
        drop: Callable[[jax.Array], jax.Array] = lambda weights: weights,
        mean: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    ) -> OnlineSoftmax:
        """With a block of keys more: logits [..., bq, bk], −inf where hidden; v [..., bk, D].

        `mean` is the product of weights and values, where these do not lie as the logits do.
        """
        mean = mean or functools.partial(_matmul, precision=precision)
        # e^{s − m} ≤ 1, so nothing overflows.
        largest = jnp.maximum(self.largest, logits.max(-1))
        # Where nothing was visible yet m is the lowest float, not −inf: e^{−inf − m} is 0.
        weights = jnp.exp(logits - largest[..., None])
        rescale = jnp.exp(self.largest - largest)
        # Dropped weights still count in ℓ: dropout is on the weights after the softmax.
        total = self.total * rescale + weights.sum(-1)
        dropped = drop(weights).astype(v.dtype)
        context = self.context * rescale[..., None]
        keys_in_a_sum = keys_in_a_sum or v.shape[-2]
        for first in range(0, v.shape[-2], keys_in_a_sum):
            keys = slice(first, first + keys_in_a_sum)
            context += mean(dropped[..., keys], v[..., keys, :])
        return OnlineSoftmax(largest, total, context)

    def finish(self) -> tuple[jax.Array, jax.Array]:
        """The context, zero where no key is visible, and the log-sum-exp, +inf there."""
        sees_any = self.total > 0
        total = jnp.where(sees_any, self.total, 1)
        # lse = +inf makes the weights of an empty row e^{s − lse} = 0 in the backward pass.
        lse = jnp.where(sees_any, self.largest + jnp.log(total), jnp.inf)
        return self.context / total[..., None], lse


class _Tile(NamedTuple):
    """One block of queries against one block of keys."""

    k: jax.Array
    v: jax.Array
    bias: Bias | None
    visible: jax.Array | None
    keep: jax.Array | None

    def logits(self, score: Score, q, k, bias, precision) -> jax.Array:
        logits = score.logits(q, k, precision=precision)
        if bias is not None:
            bias = jax.tree.map(lambda x: x.astype(logits.dtype), bias)
            logits += bias.as_array(*logits.shape[-2:])
        return logits if self.visible is None else jnp.where(self.visible, logits, -jnp.inf)

    def drop(self, weights: jax.Array, rate: float) -> jax.Array:
        return weights if self.keep is None else jnp.where(self.keep, weights / (1 - rate), 0)


def _tile(config: Config, x: Differentiable, fixed: Fixed, i, j) -> _Tile:
    first_q, first_k = fixed.first_positions
    q_positions = first_q + i * config.block_q + jnp.arange(config.block_q)
    k_positions = first_k + j * config.block_k + jnp.arange(config.block_k)
    bias = x.bias
    if bias is not None:
        # A tile of the bias by place in the arrays; the mask below goes by position.
        bias = bias.tile(*_firsts(config, i, j), config.block_q, config.block_k)
    visible = None
    if fixed.mask is not None:
        # [B|1, K|1, 1|G, bq, bk], or of one head [1, bq, bk], to the rank of q
        visible = _to_rank(fixed.mask.block(q_positions, k_positions), x.q.ndim)
    if config.hides_padding:
        real = lead_with_ones(k_positions < config.num_keys, x.q.ndim)
        visible = real if visible is None else visible & real
    keep = None
    if fixed.dropout_seeds is not None:
        keep = dropout.keep_mask(fixed.dropout_seeds, config.dropout_rate, q_positions, k_positions)
    # [..., bk, H] and [..., bk, D]
    k = _block(x.k, j, config.block_k, -2)
    v = _block(x.v, j, config.block_k, -2)
    return _Tile(k, v, bias, visible, keep)


def _key_blocks(config: Config, x: Differentiable, fixed: Fixed, i) -> tuple[Any, Any]:
    """The key blocks [first, stop) that block i of the queries may see."""
    if fixed.mask is None:
        return 0, x.k.shape[-2] // config.block_k
    first_q, first_k = fixed.first_positions
    q_positions = first_q + i * config.block_q + jnp.arange(config.block_q)
    first, stop = key_range(fixed.mask, q_positions, config.num_keys)
    # In a ring the keys at hand begin at first_k; ranges count from position 0.
    if fixed.starts is not None:
        first = jnp.clip(first - first_k, 0, x.k.shape[-2])
        stop = jnp.clip(stop - first_k, 0, x.k.shape[-2])
    return whole_blocks(first, stop, config.block_k)


def key_range(mask: Mask, q_positions: jax.Array, num_keys: int) -> tuple[Any, Any]:
    """What `Mask.key_range` says: Python's own numbers, which stay static, or int32."""

    def as_number(y):
        return y if isinstance(y, int) else jnp.asarray(y, jnp.int32)

    first, stop = mask.key_range(q_positions, num_keys)
    return as_number(first), as_number(stop)


def whole_blocks(first: Any, stop: Any, size: int) -> tuple[Any, Any]:
    """The blocks [first, stop) that hold keys [first, stop), all that hold one of them."""
    return first // size, (stop + size - 1) // size


def _forward(config: Config, x: Differentiable, fixed: Fixed, *, keys_in_a_sum: int | None = None):
    """Context [..., T, D] and lse [..., T]."""
    dtype = jnp.promote_types(x.v.dtype, jnp.float32)
    # [..., bq], where ... is B, K, G or, of one head on a CPU, G or nothing
    shape = x.q.shape[:-2] + (config.block_q,)

    def query_block(i):
        q = _block(x.q, i, config.block_q, -2)

        def key_block(j, softmax):
            tile = _tile(config, x, fixed, i, j)
            return softmax.add(
                tile.logits(x.score, q, tile.k, tile.bias, config.precision),  # [..., bq, bk]
                tile.v,
                precision=config.precision,
                keys_in_a_sum=keys_in_a_sum,
                drop=functools.partial(tile.drop, rate=config.dropout_rate),
            )

        start = OnlineSoftmax.start(shape, x.v.shape[-1], dtype)
        blocks = _key_blocks(config, x, fixed, i)
        context, lse = jax.lax.fori_loop(*blocks, key_block, vary_like(start, q)).finish()
        return context.astype(x.v.dtype), lse

    # [T/bq, ..., bq, D] and [T/bq, ..., bq]
    out, lse = jax.lax.map(query_block, jnp.arange(x.q.shape[-2] // config.block_q))
    return _join_blocks(out, -2), _join_blocks(lse, -1)


def _backward(config: Config, x: Differentiable, fixed: Fixed, rows) -> Differentiable:
    """Gradients of x; rows = (dout, lse, delta)."""
    dout, lse, delta = rows

    def query_block(shared, i):
        # [..., bq, H], [..., bq, D]; lse and δ as columns, [..., bq, 1]
        q = _block(x.q, i, config.block_q, -2)
        dout_i = _block(dout, i, config.block_q, -2)
        lse_i = _block(lse, i, config.block_q, -1)[..., None]
        delta_i = _block(delta, i, config.block_q, -1)[..., None]

        def key_block(j, grads):
            dq, dscore, dk, dv, dbias = grads
            tile = _tile(config, x, fixed, i, j)
            # [..., H, bk] and [..., D, bk], as dk and dv are added up: dsᵀ q and Pᵀ do, products of
            # a left factor that is transposed and wide, run at a third of the speed on a CPU.
            k_t, v_t = jnp.swapaxes(tile.k, -1, -2), jnp.swapaxes(tile.v, -1, -2)

            def logits_of(score, q, k_t, bias):
                return tile.logits(score, q, jnp.swapaxes(k_t, -1, -2), bias, config.precision)

            logits, pull_back = jax.vjp(logits_of, x.score, q, k_t, tile.bias)
            # P [..., bq, bk]; 0 where masked, and in rows that see nothing, where lse is +inf.
            weights = jnp.exp(logits - lse_i)
            dropped = tile.drop(weights, config.dropout_rate).astype(x.v.dtype)
            # doᵀ P, [..., D, bk]; of [B, K, G, D, bk] or [G, D, bk] the sum over G.
            dv_j = _matmul(jnp.swapaxes(dout_i, -1, -2), dropped, config.precision)
            if dv_j.shape != v_t.shape:  # query heads that share this value head
                dv_j = dv_j.sum(-3, keepdims=True)
            # do vᵀ, [..., bq, bk], through the same dropout
            dweights = tile.drop(_matmul(dout_i, v_t, config.precision), config.dropout_rate)
            dlogits = (weights * (dweights - delta_i)).astype(logits.dtype)
            # The score's own derivative: of the dot product ds k and qᵀ ds.
            dscore_ij, dq_ij, dk_j, dbias_ij = pull_back(dlogits)
            return (
                dq + dq_ij,
                jax.tree.map(_add, dscore, dscore_ij),
                _add_block(dk, dk_j, j, config.block_k),
                _add_block(dv, dv_j, j, config.block_k),
                None if dbias is None else dbias.add_tile(dbias_ij, *_firsts(config, i, j)),
            )

        dq, *shared = jax.lax.fori_loop(
            *_key_blocks(config, x, fixed, i), key_block, (_zeros_like(q), *shared)
        )
        return tuple(shared), dq

    # What all query blocks add to is carried, dk as [..., H, S] and dv as [..., D, S]; dq, of one
    # block, is stacked: [T/bq, ..., bq, H].
    keys_last = jnp.swapaxes(x.k, -1, -2), jnp.swapaxes(x.v, -1, -2)
    shared = jax.tree.map(_zeros_like, (x.score, *keys_last, x.bias))
    (dscore, dk, dv, dbias), dq = jax.lax.scan(
        query_block, shared, jnp.arange(x.q.shape[-2] // config.block_q)
    )
    dk, dv = jnp.swapaxes(dk, -1, -2), jnp.swapaxes(dv, -1, -2)
    return Differentiable(dscore, _join_blocks(dq, -2), dk, dv, dbias)


def _forward_slice_by_slice(config: Config, x: Differentiable, fixed: Fixed):
    """`_forward` of one example and key/value head after the other."""
    num_kv_heads = x.q.shape[1]
    config = config._replace(block_q=config.cpu_forward_block_q)

    def one_slice(index):
        operands = _slice((x, fixed), *divmod(index, num_kv_heads))
        # XLA:CPU adds up one key after the other: 512 of them would lose a third of a digit.
        return _forward(config, *operands, keys_in_a_sum=128)

    # [B·K, G, T, D] and [B·K, G, T]; without the axis G where G = 1
    out, lse = jax.lax.map(one_slice, jnp.arange(x.q.shape[0] * num_kv_heads))
    return out.reshape(*x.q.shape[:-1], x.v.shape[-1]), lse.reshape(x.q.shape[:-1])


def _backward_slice_by_slice(config: Config, x: Differentiable, fixed: Fixed, rows):
    """`_backward` of one example and key/value head after the other; sums what heads share."""
    num_kv_heads = x.q.shape[1]

    def one_slice(shared, index):
        b, h = divmod(index, num_kv_heads)
        grads = _backward(config, *_slice((x, fixed, rows), b, h))
        if x.q.shape[2] == 1:
            # [T, H] to [G, T, H] with G = 1 again, so that `add_slice` finds the leading axis.
            grads = jax.tree.map(lambda y: y[None], grads)
        shared = add_slice(shared, (grads.score, grads.bias), b, h)
        return shared, (grads.q, grads.k, grads.v)

    (dscore, dbias), (dq, dk, dv) = jax.lax.scan(
        one_slice,
        jax.tree.map(_zeros_like, (x.score, x.bias)),
        jnp.arange(x.q.shape[0] * num_kv_heads),
    )
    dq = dq.reshape(x.q.shape)
    dk = dk.reshape(x.k.shape)
    dv = dv.reshape(x.v.shape)
    return Differentiable(dscore, dq, dk, dv, dbias)


def _slice(operands: tuple, batch_index, kv_head_index) -> tuple:
    """One slice without leading axes of 1, which XLA:CPU computes on several times slower."""
    x, fixed, *rows = slice_heads(operands, batch_index, kv_head_index)
    if x.q.shape[0] == 1:
        # [G, T, H] with G = 1 to [T, H]
        x, rows = jax.tree.map(lambda y: y[0], (x, rows))
        if fixed.dropout_seeds is not None:
            fixed = fixed._replace(dropout_seeds=fixed.dropout_seeds[0])
    return x, fixed, *rows


def _zeros_like(x: jax.Array) -> jax.Array:
    """Where a sum of gradients of x begins."""
    return vary_like(jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), x)


def _add(total: jax.Array, part: jax.Array) -> jax.Array:
    """Their sum; what an integer gets from JAX is no number, and adds nothing."""
    return total if part.dtype == jax.dtypes.float0 else total + part


def _matmul(a: jax.Array, b: jax.Array, precision: Any) -> jax.Array:
    dtype = jnp.promote_types(b.dtype, jnp.float32)
    return jnp.matmul(a, b, precision=precision, preferred_element_type=dtype)


def _block(x: jax.Array, index, size: int, axis: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis % x.ndim)


def _add_block(x: jax.Array, block: jax.Array, index, size: int) -> jax.Array:
    """x [..., S] with a block [..., size] added to it."""
    updated = _block(x, index, size, -1) + block
    return jax.lax.dynamic_update_slice_in_dim(x, updated, index * size, x.ndim - 1)


def _firsts(config: Config, i, j) -> tuple[Any, Any]:
    """The first row and the first column of block i of the queries and block j of the keys."""
    return i * config.block_q, j * config.block_k


def _join_blocks(blocks: jax.Array, axis: int) -> jax.Array:
    """[number, ..., size, ...] to [..., number · size, ...], where `axis` is the axis of size."""
    axis %= blocks.ndim - 1
    # [..., number, size, ...], of which two axes become one
    blocks = jnp.moveaxis(blocks, 0, axis)
    return jax.lax.collapse(blocks, axis, axis + 2)


def _to_rank(x: jax.Array, ndim: int) -> jax.Array:
    """Drops or adds leading axes of length 1."""
    return x.reshape(x.shape[x.ndim - ndim :]) if x.ndim > ndim else lead_with_ones(x, ndim)


def visible_logits(
    logits: jax.Array, bias: Bias | None, mask: Mask | None, first_q: Any, first_k: Any, real: Any
) -> jax.Array:
    """The logits [..., bq, bk] of a tile with the bias, −inf where hidden or a key is not real."""
    num_q, num_k = logits.shape[-2:]
    if bias is not None:
        tile = bias.tile(first_q, first_k, num_q, num_k)
        logits += tile.as_array(num_q, num_k).astype(logits.dtype)
    visible = lead_with_ones(real, logits.ndim)
    if mask is not None:
        at = first_q + jnp.arange(num_q), first_k + jnp.arange(num_k)
        visible &= lead_with_ones(mask.block(*at), logits.ndim)
    return jnp.where(visible, logits, -jnp.inf)


def default_block(mask: Mask | None) -> int:
    """Rows of a block: 512, or half a window, from 64 on."""
    width = window_width(mask)
    return 512 if width is None else min(512, max(64, 64 * math.ceil(width / 128)))


def window_width(mask: Mask | None) -> int | None:
    """How many keys beside its own position a query sees; None = no window."""
    left, right = (None, None) if mask is None else mask.reach
    return None if left is None or right is None else left + right


def even_block(length: Any, largest: int) -> int:
    """The block size, a multiple of 8, that cuts `length` in as few equal blocks as possible.

    Of a symbolic length of `jax.export` it is the largest.
    """
    if not isinstance(length, int):
        return largest
    number = math.ceil(length / largest)
    return min(largest, 8 * math.ceil(length / number / 8))
