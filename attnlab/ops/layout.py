"""From the public [*B, T, N, H] to what the engines compute on: [B, K, G, T, H], and back.

All batch axes become one; query heads split into K groups of G = N / K that share a key/value head;
length and width come last, as matrix products want them. Everything an engine is given leads with
[B or 1, K or 1, G or 1], so one function slices it all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.biases import Bias, as_bias
from attnlab.core.axes import HeadLayout
from attnlab.core.checks import require
from attnlab.core.opaque import opaque, opaque_gradient
from attnlab.devices.split import by_device
from attnlab.masks import Mask, Padding, combine
from attnlab.ops import dropout
from attnlab.scores import Additive, Dot, Score


class Prepared(NamedTuple):
    """The operands of one attention, in layout.

    Attributes:
      score: score that `Score.prepare` left; its parameters are [1, K|1, G|1, ...].
      q: prepared queries [B, K, G, T, H'].
      k: prepared keys [B, K, 1 or G, S, H'].
      v: values [B, K, 1, S, D].
      mask: mask whose arrays are [B|1, K|1, ...], or None.
      bias: bias whose arrays are [B|1, K|1, G|1, ...], or None.
      dropout_seeds: two words for every example and head, [B, K, G, 2] uint32; None = no dropout.
    """

    score: Score
    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: Mask | None
    bias: Bias | None
    dropout_seeds: jax.Array | None


def prepare(
    score: Score, q, k, v, mask: Mask | None, bias, precision=None, dropout_key=None
) -> Prepared:
    """Lays out checked public arguments and applies the score's once-a-position part."""
    layout = HeadLayout.of(q, k)

    def heads_first(x: jax.Array, group_size: int) -> jax.Array:
        """[*B, length, heads, width] to [B, K, group_size, length, width]."""
        length, heads, width = x.shape[-3:]
        x = opaque_gradient(x).reshape(-1, length, heads // group_size, group_size, width)
        return jnp.moveaxis(x, 1, 3)

    q = heads_first(q, layout.group_size)
    k = heads_first(k, 1)
    if score.max_keys is not None and score.max_keys < layout.num_keys:
        mask = combine(Padding(score.max_keys), mask)
    score = score.split_heads(layout.num_kv_heads, layout.group_size)
    score, q, k = _prepare_positions(score, q, k, precision)
    k = jnp.broadcast_to(k, (*q.shape[:2], *k.shape[2:]))  # location's keys have no batch
    bias = as_bias(bias)
    return Prepared(
        score,
        q,
        k,
        heads_first(v, 1),
        None if mask is None else mask.in_layout(layout),
        None if bias is None else bias.in_layout(layout),
        None if dropout_key is None else dropout.seeds(dropout_key, *q.shape[:3]),
    )


def _prepare_positions(
    score: Score, q: jax.Array, k: jax.Array, precision: Any
) -> tuple[Score, jax.Array, jax.Array]:
    """`Score.prepare` of a score split into heads; what an engine could not use is refused."""
    name = type(score).__name__
    for path, leaf in jax.tree.leaves_with_path(score):
        require(
            jnp.ndim(leaf) >= 3,
            f"{name}{jax.tree_util.keystr(path)} must lead with the heads, [1, K, G, ...]; got"
            f" shape {jnp.shape(leaf)} (name it in _parameters, with its rank where all heads share"
            " it, or make it static: flax.struct.field(pytree_node=False))",
        )
    queries, num_keys = q.shape[:-1], k.shape[-2]
    prepared, q, k = score.prepare(q, k, precision=precision)
    require(
        (q.shape[:-1], k.shape[-2]) == (queries, num_keys),
        f"{name}.prepare must keep all queries {queries} and {num_keys} keys; got"
        f" {q.shape[:-1]} and {k.shape[-2]}",
    )
    definers = _definer(type(score), "prepare"), _definer(type(score), "logits")
    require(
        type(prepared) is type(score) or issubclass(*definers),
        f"{name}.logits would not be called: the prepare of {definers[0].__name__} returns a"
        f" {type(prepared).__name__} (say prepare = attnlab.scores.Score.prepare, or define it)",
    )
    if type(prepared).logits not in (Dot.logits, Additive.logits):
        _require_logits(prepared, q, k, precision)
    return prepared, q, k


def _definer(kind: type, name: str) -> type:
    """The class that defines a member of another."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _require_logits(score: Score, q: jax.Array, k: jax.Array, precision: Any) -> None:
    """Refuses logits that are not [..., T, S], in float32 at least; traced only."""
    *lead, _, width = q.shape
    few_q = jax.ShapeDtypeStruct((*lead, 2, width), q.dtype)  # not as many as keys
    few_k = jax.ShapeDtypeStruct((*k.shape[:-2], 3, k.shape[-1]), k.dtype)
    logits = jax.eval_shape(
        lambda score, q, k: score.logits(q, k, precision=precision), score, few_q, few_k
    )
    wanted = (*lead, 2, 3)
    fits = logits.shape == wanted and jnp.promote_types(logits.dtype, jnp.float32) == logits.dtype
    require(
        fits,
        f"{type(score).__name__}.logits must return at least float32 logits [..., T, S]; got"
        f" {logits.dtype} {logits.shape} for {wanted}",
    )


def over_heads(
    attend: Callable[[Prepared], jax.Array], x: Prepared, *, partitioned: bool = False
) -> jax.Array:
    """attend(x), [B, K, G, T, D], each device its examples and heads (`split.by_device`)."""
    batch, num_kv_heads = x.q.shape[:2]
    return by_device(
        attend,
        [x],
        ["bn"],
        "bn",
        name="attention",
        batch=batch,
        heads=num_kv_heads,
        partitioned=partitioned,
    )


def merge_output(x: jax.Array, batch_shape: tuple[int, ...]) -> jax.Array:
    """[B, K, G, T, D] to [*B, T, N, D]."""
    _, num_kv_heads, group_size, length, width = x.shape
    x = jnp.moveaxis(x, 3, 1)
    return opaque(x.reshape(*batch_shape, length, num_kv_heads * group_size, width))


def slice_heads(tree: Any, batch_index: Any, kv_head_index: Any) -> Any:
    """One example and one key/value head of a tree of [B|1, K|1, ...]; the two axes are dropped."""

    def take(x):
        indices = (batch_index, kv_head_index)
        for index in indices:
            x = jax.lax.dynamic_index_in_dim(x, 0 if x.shape[0] == 1 else index, 0, keepdims=False)
        return x

    return jax.tree.map(take, tree)


def visible_pairs(mask: Mask, i: jax.Array, j: jax.Array) -> jax.Array:
    """Which pairs a mask in layout shows, [B, N|1, ...], for i and j of [B|1, N|1, ...]."""

    def of_head(b, n, i, j):
        return slice_heads(mask, b, n).visible(i, j)

    lead = jnp.broadcast_shapes(*(x.shape[:2] for x in (i, j, *jax.tree.leaves(mask))))
    if 0 in lead:  # of which no example can be sliced
        return jnp.zeros((*lead, *jnp.broadcast_shapes(i.shape, j.shape)[2:]), bool)
    i = jnp.broadcast_to(i, (*lead, *i.shape[2:]))
    j = jnp.broadcast_to(j, (*lead, *j.shape[2:]))
    of_heads = jax.vmap(of_head, (None, 0, 0, 0))
    of_examples = jax.vmap(of_heads, (0, None, 0, 0))
    return of_examples(jnp.arange(lead[0]), jnp.arange(lead[1]), i, j)


def add_slice(total: Any, part: Any, batch_index: Any, kv_head_index: Any) -> Any:
    """Adds what was computed for one slice of `slice_heads` to the whole: its transpose."""

    def add(x, dx):
        # An axis of 1 is shared by all examples, or by all heads.
        b = 0 if x.shape[0] == 1 else batch_index
        h = 0 if x.shape[1] == 1 else kv_head_index
        index = b, h
        return x.at[index].add(dx)

    return jax.tree.map(add, total, part)
