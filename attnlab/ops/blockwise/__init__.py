"""The engine: exact attention of any score under any mask in memory linear in T + S.

Queries and keys are cut in blocks. For one block of queries the softmax over all keys is built a
block of keys at a time (online softmax): with the largest logit so far m, the sum ℓ = Σ e^{s − m}
and the accumulator a = Σ e^{s − m} v, a new block rescales ℓ and a by e^{m − m'} and adds its own
terms; the context is a / ℓ. Blocks that the mask rules out are never visited.

The backward pass keeps only the context o and lse = m + log ℓ, and computes each block's weights
again: p = e^{s − lse}, dv = pᵀ do, dp = do vᵀ, ds = p ∘ (dp − rowsum(do ∘ o)); the score's own
derivative turns ds into dq, dk and its parameters' gradients.

Sources: Milakov & Gimelshein 2018 §3 (online softmax); Rabe & Staats 2021; Dao et al. 2022,
Algorithms 1 and 4. The difference: `Score.logits` and `Mask.block` stand where they have q·k.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from attnlab.core.axes import pad_to_multiple
from attnlab.devices.meshes import vary_like
from attnlab.ops.blockwise import engine
from attnlab.ops.blockwise.engine import Config, Differentiable, Fixed
from attnlab.ops.layout import Prepared


# Compiled here, so that a call outside any `jit` compiles once and not each time.
@functools.partial(
    jax.jit, static_argnames=("dropout_rate", "precision", "block_q", "block_k"), inline=True
)
def attend(
    x: Prepared,
    *,
    dropout_rate: float = 0.0,
    precision: Any = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> jax.Array:
    """The same function as `dense.attend`, [B, K, G, T, D].

    Blocks are 512 × 512 unless given, or half a window wide, from 64 on, where the mask has one;
    a forward pass on a CPU takes 1024 rows where the length is a multiple of that.

    Time O(T·S) less the blocks that the mask rules out; memory O(T + S + block_q·block_k), also
    backward.
    """
    num_queries, num_keys = x.q.shape[-2], x.k.shape[-2]
    block, rows_are_given = engine.default_block(x.mask), block_q is not None
    block_q = engine.even_block(num_queries, block_q or block)
    block_k = engine.even_block(num_keys, block_k or block)
    q = pad_to_multiple(x.q, -2, block_q)
    k = pad_to_multiple(x.k, -2, block_k)
    v = pad_to_multiple(x.v, -2, block_k)
    bias = None if x.bias is None else x.bias.padded(q.shape[-2], k.shape[-2])
    operands = (
        Differentiable(x.score, q, k, v, bias),
        Fixed(None if x.mask is None else x.mask.pad(block_q, block_k), x.dropout_seeds, None),
    )
    # The backward carries gradients through a CPU's cache as well; else twice the rows fit in it.
    # In a window twice the rows would multiply blocks of keys that half of them cannot see.
    doubles = not rows_are_given and block_q == 512 and engine.window_width(x.mask) is None
    doubles &= operands[0].q.shape[-2] % (2 * block_q) == 0
    config = Config(
        block_q,
        block_k,
        2 * block_q if doubles else block_q,
        num_keys,
        operands[0].k.shape[-2] != num_keys,
        dropout_rate,
        precision,
    )
    return _attend(config, *vary_like(operands))[..., :num_queries, :]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(config: Config, x: Differentiable, fixed: Fixed) -> jax.Array:
    return _attend_forward(config, x, fixed)[0]


def _attend_forward(config, x, fixed):
    out, lse = engine.forward(config, x, fixed)
    if fixed.mask is not None:  # it decides how many blocks are visited
        out, lse = _refuse_reverse_mode((out, lse))
    return out, (x, fixed, out, lse)


def _attend_backward(config, residuals, dout):
    x, fixed, out, lse = residuals
    delta = jnp.sum(dout.astype(lse.dtype) * out.astype(lse.dtype), axis=-1)
    grads = engine.backward(config, x, fixed, (dout, lse, delta))
    if fixed.mask is not None:
        grads = _refuse_reverse_mode(grads)
    return jax.tree.map(lambda grad, primal: grad.astype(primal.dtype), grads, x), None


_attend.defvjp(_attend_forward, _attend_backward)


def _refuse_reverse_mode(tree: Any) -> Any:
    """The same arrays; a reverse-mode derivative through them raises NotImplementedError.

    A loop over the blocks that a mask shows has bounds that depend on the data, hence no reverse
    mode. JAX says so in terms of the loop; this says it in terms of attention. Forward mode goes
    through: `jax.jvp(jax.grad(f), …)` and `jax.hessian(f)` work.
    """
    return jax.tree.map(_refused.bind, tree)


def _raise(*_):
    raise NotImplementedError(
        "blockwise attention under a mask has no reverse-mode derivative of its gradient; got grad"
        ' of grad (set implementation="dense", or, with any score but additive and concat, take'
        " jax.jvp of jax.grad)"
    )


_refused = Primitive("refuse_reverse_mode")
_refused.def_impl(lambda x: x)
_refused.def_abstract_eval(lambda x: x)
ad.deflinear2(_refused, _raise)
batching.defvectorized(_refused)
mlir.register_lowering(_refused, lambda ctx, x: [x])
