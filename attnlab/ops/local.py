"""Local attention: each query looks at a window of the keys, so time is O(T·window), not O(T·S).

* `window_attention`: around the query's own position, any score (restricted self-attention,
  Vaswani et al. 2017, §4; with right = 0 the sliding window of causal language models);
* `local_attention`: around a center of each query's own choice (Luong et al. 2015, §3.2).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.biases import Bias
from attnlab.core.axes import HeadLayout, widen
from attnlab.core.checks import as_array, as_count, require, require_dropout
from attnlab.core.shapes import fit
from attnlab.devices.meshes import on_explicit_axes, spec_of
from attnlab.ops.attention import Implementation, attention, attention_weights, of_masks
from attnlab.ops.layout import visible_pairs
from attnlab.scores import Dot, Location, Score, as_operands


@of_masks
def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    window: tuple[int, int],
    q_offset: ArrayLike | None = None,
    score: Score | None = None,
    mask: masks.Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Attention in which query i sees the keys i − left … i + right only.

    `attention` with `masks.Window(left, right)`: the engine visits no block outside the window.

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      window: numbers (left, right) of keys seen before and after the query's position.
      q_offset: position of the first query among the keys, as for `masks.Window`; None = where the
        mask says, or 0.
      score: any score; None = scaled dot product.
      mask: mask that restricts the window further; `masks.Causal()` hides what it shows of the
        future.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`; "dense" costs O(T·S).
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D].

    Cost: O(T·(left + right + block)) time and O(T + S) memory, also backward.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 9, 2, 4))
      >>> window_attention(q, k, v, window=(2, 0)).shape
      (1, 9, 2, 4)
    """
    left, right = window
    return attention(
        Dot() if score is None else score,
        q,
        k,
        v,
        mask=within(left, right, q_offset, mask),
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        implementation=implementation,
        precision=precision,
    )


def within(
    left: int, right: int, q_offset: ArrayLike | None, mask: masks.Mask | ArrayLike | None
) -> masks.Mask | None:
    """A window and a mask: one where that hides the future, which more implementations take."""
    mask = masks.as_mask(mask)
    q_offset = masks.first_position(mask) if q_offset is None else q_offset
    masks.Window(left, right, q_offset).check()
    band = None if mask is None else mask.band
    # The same object: whether two arrays are equal is not known while tracing.
    if band is not None and (band.left, band.right) == (None, 0) and band.q_offset is q_offset:
        return masks.Window(left, 0, q_offset)
    return masks.combine(masks.Window(left, right, q_offset), mask)


def _split_as_queries(arguments):
    *batch, queries, heads, _ = spec_of(arguments["q"])
    context = PartitionSpec(*batch, queries, heads, None)
    if not arguments.get("return_weights"):
        return context
    return context, PartitionSpec(*batch, heads, queries, None)


@of_masks
@on_explicit_axes(_split_as_queries, of="q")
def local_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    centers: jax.Array,
    *,
    half_width: int = 10,
    score: Score | None = None,
    gaussian: bool = False,
    mask: masks.Mask | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    precision: jax.lax.PrecisionLike = None,
    return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Luong's local attention: a softmax over the keys within `half_width` of each query's center.

    With `gaussian` the weights are then multiplied by exp(−(s − p_t)² / 2σ²), σ = half_width / 2
    (½ where that is 0), and NOT renormalized, so that they are differentiable in the center p_t.

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      centers: centers p_t [*B, T], floats or integers, in key positions; `arange(T)` is local-m, a
        predicted S·sigmoid(...) is local-p.
      half_width: reach D of the paper; a query sees at most 2·half_width + 1 keys.
      score: any score but Location; None = plain dot product.
      gaussian: whether to multiply the weights by the Gaussian of local-p.
      mask: a mask (`attnlab.masks`) or a boolean array that broadcasts to [*B, N, T, S]; it is
        asked of the pairs in a window only.
      dropout_rate: probability of dropping a weight; the rest are scaled by 1/(1 − rate).
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      precision: precision of the matrix products, as in `jax.lax.dot_general`.
      return_weights: whether to return the weights too.

    Returns:
      The context [*B, T, N, D]; with `return_weights` also the weights over all keys,
      [*B, N, T, S]. A query with no key in its window gets zero.

    Raises:
      ValueError: for arguments that do not fit together.
      NotImplementedError: for the location score.

    Cost: O(T·half_width) time and memory (the weights O(T·S)). Source: Luong et al. 2015, §3.2.
    """
    score = Dot(1.0) if score is None else score
    q, k, v = as_operands(score, q, k, v)
    centers = as_array("centers", centers)
    dropout_rate = require_dropout(dropout_rate, dropout_key)
    half_width = as_count("half_width counts keys,", half_width)
    fit("q: *B T N H", q, "centers: *B T", centers)
    require(centers.dtype != bool, "centers must be positions, numbers; got booleans (cast them)")
    if isinstance(score, Location):
        raise NotImplementedError(
            "local attention looks at keys and Location does not; use another score"
        )
    mask = masks.as_mask(mask)
    *batch_shape, num_queries, num_heads, _ = q.shape
    num_keys = k.shape[-3]
    if not jnp.issubdtype(centers.dtype, jnp.floating):
        centers = centers.astype(jnp.float32)
    centers = centers.astype(jnp.promote_types(centers.dtype, jnp.float32))[..., None]  # [*B, T, 1]
    window = jnp.arange(2 * half_width + 1).reshape((1,) * (centers.ndim - 1) + (-1,))
    positions = jnp.ceil(centers - half_width).astype(jnp.int32) + window  # [*B, T, 2D + 1]
    places = positions.astype(centers.dtype)
    visible = (positions >= 0) & (positions < num_keys) & (places <= centers + half_width)
    visible = visible[..., None, :]  # [*B, T, N or 1, 2D + 1]
    if mask is not None:
        layout = HeadLayout(tuple(batch_shape), num_heads, 1, num_queries, num_keys)
        keys = jnp.clip(positions, 0, num_keys - 1).reshape(-1, 1, *positions.shape[-2:])
        queries = jnp.arange(num_queries).reshape(1, 1, -1, 1)
        shown = visible_pairs(mask.in_layout(layout), queries, keys)  # [B, N|1, T|1, 2D + 1|1]
        _, heads, _, places_shown = shown.shape
        shown = jnp.broadcast_to(shown, (len(keys), heads, num_queries, places_shown))
        shown = jnp.moveaxis(shown, 1, 2)
        # [B, T, N|1, 2D + 1|1] to [*B, T, N|1, 2D + 1|1]
        visible &= shown.reshape(*batch_shape, num_queries, heads, places_shown)

    def of_each_query(x):
        """[*B, S, K, D] to [*B, T, 2·half_width + 1, K, D]."""
        number = positions.shape[-2] * positions.shape[-1]
        flat = jnp.clip(positions, 0, num_keys - 1).reshape(*x.shape[:-3], number, 1, 1)
        taken = jnp.take_along_axis(widen(x), flat, axis=-3).astype(x.dtype)
        return taken.reshape(*positions.shape, *x.shape[-2:])

    # Every query is now an example of its own, with its own few keys.
    weights = attention_weights(
        score,
        q[..., None, :, :],
        of_each_query(k),
        mask=visible[..., None, :],
        precision=precision,
    )[..., 0, :]  # [*B, T, N, 2D + 1]
    if gaussian:
        sigma = max(half_width, 1) / 2
        weights *= jnp.exp(-((places - centers) ** 2) / (2 * sigma**2))[..., None, :]
        weights = jnp.where(visible, weights, 0)  # as in `dense.weights`
    undropped = weights
    if dropout_rate > 0.0 and dropout_key is not None:
        keep = jax.random.bernoulli(dropout_key, 1 - dropout_rate, weights.shape)
        weights = jnp.where(keep, weights / (1 - dropout_rate), 0)
    # [*B, T, N, 2D + 1] to [*B, T, K, G, 2D + 1]
    grouped = weights.reshape(
        *weights.shape[:-2], v.shape[-2], q.shape[-2] // v.shape[-2], weights.shape[-1]
    )
    context = jnp.einsum(
        "...kgs,...skd->...kgd",
        grouped.astype(v.dtype),
        of_each_query(v),
        precision=precision,
        preferred_element_type=weights.dtype,
    )
    context = context.reshape(*q.shape[:-1], v.shape[-1]).astype(v.dtype)
    context = jnp.where(jnp.isnan(centers)[..., None], jnp.nan, context)  # nobody is visible there
    if not return_weights:
        return context
    at = jnp.where(visible, positions[..., None, :], num_keys)  # num_keys: dropped below
    spread = jnp.vectorize(
        lambda row, at: jnp.zeros(num_keys, row.dtype).at[at].set(row, mode="drop"),
        signature="(w),(w)->(s)",
    )(undropped, jnp.broadcast_to(at, undropped.shape))
    return context, jnp.moveaxis(spread, -2, -3)
