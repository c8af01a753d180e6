"""Exact attention of a sequence that is divided over a ring of devices.

Each device keeps its queries; keys and values go round, one device further at each step, and their
gradients go round with them. What a device has seen is one softmax with a log-sum-exp, so steps are
merged as blocks are, and the backward pass computes the weights of every step from that of all. A
device never has more than two shares of the keys, however long the sequence is.

Where the future is hidden the first positions have little to see and the last have all. Each device
then has one piece from the front and one from the back, which share the work evenly.

Source: Liu, Zaharia & Abbeel, "Ring Attention with Blockwise Transformers" (2023), §3; the order of
the pieces: Brandon et al., "Striped Attention" (2023), §3, and its relatives ("zigzag").
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.biases import Bias, Explicit
from attnlab.core.axes import pad_to_multiple
from attnlab.devices.split import by_device, current
from attnlab.masks import Mask
from attnlab.ops.blockwise import engine
from attnlab.ops.blockwise.engine import Config, Differentiable, Fixed
from attnlab.ops.layout import Prepared
from attnlab.scores import Score

_NOTHING = -1e30  # a log-sum-exp of no keys; −inf would give NaN in differences


class _Ring(NamedTuple):
    """Devices in a ring, and the pieces that each has; static."""

    axes: tuple[str, ...]
    size: int
    pieces: int

    def pass_on(self, tree: Any) -> Any:
        """What the device before has."""
        pairs = [(i, (i + 1) % self.size) for i in range(self.size)]
        return jax.lax.ppermute(tree, self.axes, pairs)

    def starts(self, length: int) -> jax.Array:
        """Positions of the first tokens of this device's pieces of `length`, [pieces] int32."""
        index = jax.lax.axis_index(self.axes)
        if self.pieces == 1:
            return (index * length)[None].astype(jnp.int32)
        # Device i has pieces i and 2P − 1 − i of 2P: early ones see little, late ones much.
        front_and_back = jnp.stack([index, 2 * self.size - 1 - index])
        # In slot 0 the even piece: `_exchange` sends halves by whether they are even.
        even_first = jnp.where(index % 2 == 0, front_and_back, front_and_back[::-1])
        return (even_first * length).astype(jnp.int32)

    def to_pieces(self, x: jax.Array) -> jax.Array:
        """The device's positions [B, K, G, T, H] to its pieces [pieces, B, K, G, length, H]."""
        # [pieces, B, K, G, length, H] of neighboring positions, not yet the device's own pieces
        halves = jnp.stack(jnp.split(x, self.pieces, axis=3))
        return self._exchange(halves, forth=True) if self.pieces == 2 else halves

    def to_positions(self, pieces: jax.Array) -> jax.Array:
        """The inverse of `to_pieces`."""
        halves = self._exchange(pieces, forth=False) if self.pieces == 2 else pieces
        return jnp.concatenate(list(halves), axis=3)

    def _exchange(self, x: jax.Array, *, forth: bool) -> jax.Array:
        # Piece 2i + h is half h of device i; of a device's two one is even and one is odd.
        last = 2 * self.size - 1
        owners = [piece if piece < self.size else last - piece for piece in range(2 * self.size)]
        halves = []
        for half in range(2):
            pairs = [(i, owners[2 * i + half]) for i in range(self.size)]
            pairs = pairs if forth else [(to, start) for start, to in pairs]
            halves.append(jax.lax.ppermute(x[half], self.axes, pairs))
        return jnp.stack(halves)


def attend(x: Prepared, *, dropout_rate: float = 0.0, precision: Any = None) -> jax.Array:
    """The same function as `blockwise.attend`, [B, K, G, T, D], positions divided by `over`.

    Cost: each device a share of the time; memory O((T + S) / devices + block²), also backward, and
    its rows of a bias; the keys, values and their gradients go round once.
    """
    split = current()
    assert split is not None
    num_queries, num_keys = x.q.shape[3], x.k.shape[3]
    devices = split.size(split.length)
    hides_far_future = x.mask is not None and x.mask.reach[1] is not None
    pieces = 2 if hides_far_future and num_queries == num_keys else 1
    ring = _Ring(split.length, devices, pieces)

    block = engine.default_block(x.mask)
    block_q = engine.even_block(math.ceil(num_queries / (devices * pieces)), block)
    block_k = engine.even_block(math.ceil(num_keys / (devices * pieces)), block)
    # T and S become multiples of devices × pieces × block, so that no block is cut.
    q = pad_to_multiple(x.q, 3, devices * pieces * block_q)
    k = pad_to_multiple(x.k, 3, devices * pieces * block_k)
    v = pad_to_multiple(x.v, 3, devices * pieces * block_k)
    bias = None if x.bias is None else x.bias.padded(q.shape[3], k.shape[3])
    config = Config(
        block_q,
        block_k,
        cpu_forward_block_q=block_q,
        num_keys=num_keys,
        hides_padding=k.shape[3] != num_keys,
        dropout_rate=dropout_rate,
        precision=precision,
    )
    mask = None if x.mask is None else x.mask.pad(block_q, block_k)
    context = by_device(
        functools.partial(_of_device, config, ring),
        [x.score, q, k, v, bias, mask, x.dropout_seeds],
        ["bn", "bngt", "bngt", "bngt", "" if bias is None else bias.axes, "bn", "bn"],
        "bngt",
        name="attention around a ring",
        batch=x.q.shape[0],
        heads=x.q.shape[1],
        rings=True,
    )
    return context[:, :, :, :num_queries]


def _of_device(
    config: Config,
    ring: _Ring,
    score: Score,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: Bias | None,
    mask: Mask | None,
    dropout_seeds: jax.Array | None,
) -> jax.Array:
    if isinstance(bias, Explicit):
        rows = jnp.asarray(bias.array)
        for_all = rows.shape[3] == 1
        # Its rows go with the pieces of the queries: [pieces, B, K, G, length, S].
        bias = Explicit(jnp.stack([rows] * ring.pieces) if for_all else ring.to_pieces(rows))
    q = ring.to_pieces(q)
    k = ring.to_pieces(k)
    v = ring.to_pieces(v)
    starts = tuple(ring.starts(y.shape[4]) for y in (q, k))
    fixed = Fixed(mask, dropout_seeds, None)
    x = Differentiable(score, q, k, v, bias)
    return ring.to_positions(_attend(config, ring, x, fixed, starts))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(config, ring, x, fixed, starts):
    """Contexts of this device's pieces; the arrays of x in pieces, a bias with all keys.

    A bias by distance is whole.
    """
    return _forward(config, ring, x, fixed, starts)[0]


def _pair(x, fixed, starts, keys, index, ring: _Ring) -> tuple[Any, Any, Differentiable, Fixed]:
    """Piece i of the queries against piece j of the keys at hand."""
    # [pieces, B, K, 1, length, H] and D, and the position of each piece's first key [pieces]
    k, v, k_starts = keys
    i, j = index // ring.pieces, index % ring.pieces
    # [1, 1, 2], as if in layout, so that a CPU slices it with the rest
    at = jnp.stack([starts[0][i], k_starts[j]])[None, None]
    bias = x.bias
    if bias is not None:
        bias, first_q = _of_piece(bias, i, starts[0])
        bias = bias.tile(first_q, k_starts[j], x.q.shape[4], k.shape[4])
    return i, j, Differentiable(x.score, x.q[i], k[j], v[j], bias), fixed._replace(starts=at)


def _of_piece(bias: Bias, i: Any, q_starts: jax.Array) -> tuple[Bias, Any]:
    """The bias that has piece i of the queries, and the row at which that begins in it."""
    if isinstance(bias, Explicit):
        return Explicit(jnp.asarray(bias.array)[i]), 0
    return bias, q_starts[i]


def _add_bias(total, gradient, i, q_starts, key_start):
    """The gradient of a bias with that of piece i and the keys from `key_start` on."""
    if total is None:
        return None
    of_piece, first_q = _of_piece(total, i, q_starts)
    updated = of_piece.add_tile(gradient, first_q, key_start)
    if isinstance(updated, Explicit):
        return Explicit(jnp.asarray(total.array).at[i].set(updated.array))
    return updated


def _forward(config, ring, x, fixed, starts):
    _, q, k, v, _ = x
    dtype = jnp.promote_types(v.dtype, jnp.float32)

    def step(carry, _):
        # The keys at hand, and the context [pieces, B, K, G, length, D] and lse of all steps so
        # far.
        keys, merged = carry
        following = ring.pass_on(keys)

        def pair(merged, index):
            out, lse = merged
            i, _, operands, where = _pair(x, fixed, starts, keys, index, ring)
            context, lse_now = engine.forward(config, operands, where)
            lse_now = jnp.where(jnp.isposinf(lse_now), _NOTHING, lse_now)
            # Contexts are divided by their totals, so they are averaged by e^{lse}.
            new_lse = jnp.logaddexp(lse[i], lse_now)
            before = jnp.exp(lse[i] - new_lse)[..., None]
            now = jnp.exp(lse_now - new_lse)[..., None]
            out = out.at[i].set(out[i] * before + context.astype(dtype) * now)
            return (out, lse.at[i].set(new_lse)), None

        merged, _ = jax.lax.scan(pair, merged, jnp.arange(ring.pieces**2))
        return (following, merged), None

    nothing = (
        jnp.zeros((*q.shape[:-1], v.shape[-1]), dtype),
        jnp.full(q.shape[:-1], _NOTHING, dtype),
    )
    # As many steps as devices: after the last, keys are where they began.
    (_, (out, lse)), _ = jax.lax.scan(step, ((k, v, starts[1]), nothing), length=ring.size)
    out = out.astype(v.dtype)
    return out, (x, fixed, starts, out, lse)


def _backward(config, ring, residuals, dout):
    x, fixed, starts, out, lse = residuals
    delta = jnp.sum(dout.astype(lse.dtype) * out.astype(lse.dtype), axis=-1)

    def zeros(y):
        return jnp.zeros(y.shape, jnp.promote_types(y.dtype, jnp.float32))

    def step(carry, _):
        # Gradients of the keys travel with them and come home complete; those of the queries stay.
        keys, of_keys, of_queries = carry
        following = ring.pass_on(keys)

        def pair(grads, index):
            (dk, dv), (dscore, dq, dbias) = grads
            i, j, operands, where = _pair(x, fixed, starts, keys, index, ring)
            gradients = engine.backward(config, operands, where, (dout[i], lse[i], delta[i]))
            dscore = jax.tree.map(jnp.add, dscore, gradients.score)
            of_keys = dk.at[j].add(gradients.k), dv.at[j].add(gradients.v)
            dbias = _add_bias(dbias, gradients.bias, i, starts[0], keys[2][j])
            return (of_keys, (dscore, dq.at[i].add(gradients.q), dbias)), None

        grads = of_keys, of_queries
        (of_keys, of_queries), _ = jax.lax.scan(pair, grads, jnp.arange(ring.pieces**2))
        return (following, ring.pass_on(of_keys), of_queries), None

    of_keys, of_queries = jax.tree.map(zeros, ((x.k, x.v), (x.score, x.q, x.bias)))
    start = (x.k, x.v, starts[1]), of_keys, of_queries
    (_, (dk, dv), (dscore, dq, dbias)), _ = jax.lax.scan(step, start, length=ring.size)
    grads = Differentiable(dscore, dq, dk, dv, dbias)
    return jax.tree.map(lambda grad, y: grad.astype(y.dtype), grads, x), None, None


_attend.defvjp(_forward, _backward)
