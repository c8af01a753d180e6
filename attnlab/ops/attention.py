"""Exact attention over all pairs: any score under any mask; `named` has the named mechanisms.

`implementation` says how, never what; every one computes the same function, and refuses what it
does not serve: the table is in `attnlab.ops`.

All but `"dense"` take O(T + S) memory, and have a backward pass of their own, so no forward mode.
They sum values before they divide by the sum of the weights: where S·|v| is beyond the largest
float32, 3.4e38, a context is inf or NaN that `"dense"` has right.
Second derivatives of `"blockwise"` are forward over reverse, `jax.jvp` of `jax.grad`; where there
is no mask reverse over reverse too, which keeps all logits, O(T·S). The additive and concat scores
have no forward mode in any of them: their second derivatives are `grad` of `grad`, under a mask
with `"dense"`. `Pallas(block_q=…, block_k=…)` is `"pallas"` with tiles of your own.

`"splash"` multiplies q, not the logits, by the scale of a dot product. In bfloat16 a scale that is
no power of 2 rounds q once (1/√H is one for H = 16, 64 and 256): where logits are large, the error
of a context was up to 3.4 times that of `"dense"` with H = 128.

`None` is `"cudnn"` on NVIDIA where it serves, else `"pallas"` on an H100 or H200 where that serves
(on an H200 16,384 tokens of the dot product took 1.5 ms and 23 by `"blockwise"`; 8,192 of the
additive score 7 and 20); on TPU `"splash"` where it serves, up to 2³⁰ pairs (beyond, what it does
while tracing takes longer than 7 s). `"pallas"` and `"splash"` are chosen under `attnlab.over` or
where there is one device in all.
Else it is `"dense"` for at most 32 queries or keys and 2048 of the others, a decoder's step say,
where all pairs are but a block and the engine around it only costs (1.3 to 18 times the time on a
CPU); `"blockwise"` beyond, which for at most 8 queries transposes a block of keys at a time and no
whole cache (`blockwise.few_queries`). It looks at the default device while tracing; to compile for
another one, trace under `platforms.compiling_for`.

On a mesh, under `jit`, `attnlab.over` says which of its axes divide examples, heads or positions:
every implementation then computes a device's own rows on each. Arrays on Explicit axes say it of
examples and heads themselves. Without it `"dense"`, `"cudnn"` and, on accelerators, `"blockwise"`
are partitioned by XLA; on a CPU `"blockwise"` is computed in full on every device, and `"splash"`,
`"pallas"` and `"tokamax"` are refused when they are compiled. Inside
`jax.shard_map` everything is one device's; there the three kernels need check_vma=False, because
they do not say over which axes they vary.

Letters: *B batch axes, T queries, S keys, N query heads, K key/value heads (N a multiple of K;
query head n uses key/value head n // (N/K)), H head width, D value width. All but the batch axes
are at least 1; an empty batch gives an empty context.
"""

from __future__ import annotations

import functools
import math

import jax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from attnlab.biases import Bias
from attnlab.core.checks import points_to, require_choice, require_dropout
from attnlab.devices import platforms
from attnlab.devices.meshes import like, on_explicit_axes, spec_of
from attnlab.devices.split import (
    divide_positions,
    heads_are_too_few,
    serves_kernels,
    share_heads,
)
from attnlab.masks import Mask, as_mask
from attnlab.ops import blockwise, dense, one_query
from attnlab.ops.blockwise import few_queries, ring
from attnlab.ops.kernels import cudnn, splash, tokamax
from attnlab.ops.kernels.call import Call
from attnlab.ops.kernels.pallas import Pallas, exact
from attnlab.ops.layout import merge_output, over_heads, prepare
from attnlab.scores import Score, as_operands

__all__ = [
    "IMPLEMENTATIONS",
    "Implementation",
    "Pallas",
    "attention",
    "attention_weights",
    "of_masks",
]


Implementation = str | Pallas | None
_KERNELS = {"cudnn": cudnn, "splash": splash, "tokamax": tokamax, "pallas": exact}
IMPLEMENTATIONS = (None, "dense", "blockwise", *_KERNELS)
# Up to here T × S logits are a block's, and the engine around them only costs.
_SHORT, _LONG = 32, 2048
# Splash goes through all pairs of its mask on the host while it is traced: 7 s for so many.
_MOST_SPLASH_PAIRS = 2**30


# Keywords that `jax.nn.dot_product_attention` and others have, and what says the same here.
of_masks = points_to(
    is_causal="use mask=masks.Causal()",
    causal="use mask=masks.Causal()",
    local_window_size="use mask=masks.Window(left, right)",
    query_seq_lengths="use mask=masks.Padding(kv_lengths, q_lengths)",
    key_value_seq_lengths="use mask=masks.Padding(kv_lengths)",
)


@of_masks
@on_explicit_axes(like("q"), of="q")
def attention(
    score: Score,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Exact attention: context_i = Σ_j softmax_j(score(q_i, k_j) + bias_ij) v_j over visible j.

    A query that may see no key gets the context zero, and gradient zero. No finite value at an
    invisible position can change an output or a gradient; NaN and inf there may. Additive and
    concat scores keep this up to rounding where a query and an invisible key are both beyond ±33.
    The kernels that others maintain, "cudnn", "splash" and "tokamax", keep it for values whose
    products do not overflow; for padding, "cudnn" has no such limit. Softmax and sums are in at
    least float32.

    Args:
      score: similarity of a query and a key, a value of `attnlab.scores`.
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      mask: a mask (`attnlab.masks`) or a boolean array that broadcasts to [*B, N, T, S];
        True = may attend.
      bias: term added to the logits: a bias (`attnlab.biases`) or an array that broadcasts to
        [*B, N, T, S].
      dropout_rate: probability of dropping a weight; the rest are scaled by 1/(1 − rate).
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name of the table in `attnlab.ops`, or `Pallas(...)`.
      precision: precision of the matrix products, as in `jax.lax.dot_general`.

    Returns:
      The context [*B, T, N, D] in the dtype of q.

    Raises:
      ValueError: for arguments that do not fit together.
      NotImplementedError: if the named implementation does not serve them.
      TypeError: JAX's, of custom_vjp, for `jax.jvp` and `jax.jacfwd` where it is not dense: more
        than 32 queries and keys, or 2048 of one of them (take implementation="dense").

    Cost: O(T·S·(H + D)) time per head, less what the mask rules out; memory O(T + S), dense O(T·S).

    Source: Vaswani et al. 2017, §3.2, for the general form; `blockwise` for the algorithm.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attnlab import attention, masks, scores
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 8))
      >>> attention(scores.Dot(), q, k, v, mask=masks.Causal()).shape
      (2, 5, 4, 8)
    """
    q, k, v = as_operands(score, q, k, v)
    dropout_rate = require_dropout(dropout_rate, dropout_key)
    dropout_key = dropout_key if dropout_rate > 0.0 else None
    pallas = implementation if isinstance(implementation, Pallas) else Pallas()
    if isinstance(implementation, Pallas):
        implementation = "pallas"
    require_choice("implementation", implementation, IMPLEMENTATIONS)
    if 0 in q.shape:
        implementation = "dense"  # which checks the rest of the arguments, and loops over nothing
    # Over devices: positions divided by `over` are exchanged for heads, else go round a ring.
    q, k, v = share_heads(q, k, v)
    around_ring = heads_are_too_few(k.shape[-2]) and 0 not in q.shape
    attend = _around_a_ring if around_ring else _attend
    platform = platforms.current()
    call = Call(
        score, q, k, v, as_mask(mask), bias, dropout_rate, precision, platform, pallas, dropout_key
    )
    return divide_positions(attend(call, implementation))


def _attend(call: Call, implementation: str | None) -> jax.Array:
    """The context [*B, T, N, D] by a kernel or an engine, which know no divided positions."""
    if implementation is None and not all(isinstance(length, int) for length in call.lengths):
        implementation = "blockwise"  # of a symbolic length of `jax.export`
    if implementation in _KERNELS:
        kernel = _KERNELS[implementation]
        if reason := kernel.refusal(call):
            raise NotImplementedError(
                f'implementation="{implementation}" {reason}; use implementation="blockwise" or '
                "None"
            )
        return kernel.attend(call)
    if implementation is not None:
        return _by_engine(call, implementation)
    for name in _kernels_by_default(call):
        if _KERNELS[name].refusal(call) is None:
            return _KERNELS[name].attend(call)
    shorter, longer = sorted(call.lengths)
    if shorter <= _SHORT and longer <= _LONG:
        return one_query.attend(call) if one_query.serves(call) else _by_engine(call, "dense")
    by_block = functools.partial(_by_engine, implementation="blockwise")
    return few_queries.attend(call, by_block) if few_queries.serves(call) else by_block(call)


def _by_engine(call: Call, implementation: str) -> jax.Array:
    engine = dense.attend if implementation == "dense" else blockwise.attend
    options = {"dropout_rate": call.dropout_rate, "precision": call.precision}
    context = over_heads(functools.partial(engine, **options), call.prepared(), partitioned=True)
    return merge_output(context, call.q.shape[:-3])


def _around_a_ring(call: Call, implementation: str | None) -> jax.Array:
    """The context [*B, T, N, D] of positions that stay with the devices of `over`."""
    if implementation not in (None, "blockwise"):
        raise NotImplementedError(
            f"the devices of length= do not divide {call.k.shape[-2]} key/value heads, and around a"
            f' ring of them attention is blockwise; got implementation="{implementation}"'
            " (use None, or fewer devices)"
        )
    context = ring.attend(call.prepared(), dropout_rate=call.dropout_rate, precision=call.precision)
    return merge_output(context, call.q.shape[:-3])


def _kernels_by_default(call: Call) -> list[str]:
    """The kernels to ask before the engines, the fastest first."""
    names = []
    if call.platform.name == "tpu" and serves_kernels():
        if math.prod(call.lengths) <= _MOST_SPLASH_PAIRS:
            names.append("splash")
    if call.platform.name == "cuda":
        if call.platform.has_cudnn:
            names.append("cudnn")
        known = all(isinstance(size, int) for size in call.q.shape)  # no symbolic batch
        if known and serves_kernels() and min(call.lengths) > _SHORT:
            names.append("pallas")
    return names


def _split_as_heads_and_queries(arguments):
    *batch, queries, heads, _ = spec_of(arguments["q"])
    return PartitionSpec(*batch, heads, queries, None)


@of_masks
@on_explicit_axes(_split_as_heads_and_queries, of="q")
def attention_weights(
    score: Score,
    q: jax.Array,
    k: jax.Array,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """The weights softmax_j(score(q_i, k_j) + bias_ij), for looking at.

    Args: as for `attention`.

    Returns:
      [*B, N, T, S] in at least float32; rows sum to 1, or to 0 where nothing is visible.

    Cost: O(T·S) memory; use it on what a figure can show.
    """
    q, k, _ = as_operands(score, q, k, None)
    prepared = prepare(score, q, k, k, as_mask(mask), bias, precision)
    weights = dense.weights(prepared, precision=precision)
    num_queries, num_heads = q.shape[-3:-1]
    return weights.reshape(*q.shape[:-3], num_heads, num_queries, k.shape[-3])
