"""The mathematics of one tile, for every kernel: some queries meet some keys.

The functions hold no layout: a kernel keeps its tile with the queries along either axis, and hands
in what belongs to a query (largest logit, log-sum-exp) already spread over the tile, or a function
that spreads it. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Not -inf: where nothing is visible, -inf − -inf would be NaN. Half of it still swallows any logit.
MASKED = -1e30


def in_range(position: jax.Array, first: jax.Array, extent: jax.Array) -> jax.Array:
    """True where first ≤ position < first + extent."""
    return (position >= first) & (position < first + extent)


def softmax_step(
    largest: jax.Array,
    total: jax.Array,
    logits: jax.Array,
    visible: jax.Array,
    *,
    spread: Callable[[jax.Array], jax.Array],
    axis: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """One tile of the online softmax (Milakov & Gimelshein 2018, §3).

    Args:
      largest: largest logit of each query so far.
      total: sum Σ e^{s − largest} of each query so far.
      logits: logits of the tile.
      visible: booleans of the tile.
      spread: function that spreads one number for each query over the tile.
      axis: axis of the keys in the tile.

    Returns:
      The new largest and total, the tile's e^{s − largest} (zero where not visible), and the factor
      by which sums so far shrink.
    """
    logits = jnp.where(visible, logits, MASKED)
    new = jnp.maximum(largest, jnp.max(logits, axis=axis))
    shrink = jnp.exp(largest - new)
    # Without `where`, a query that sees nothing would have e^{MASKED − MASKED} = 1.
    p = jnp.where(visible, jnp.exp(logits - spread(new)), 0.0)
    return new, total * shrink + jnp.sum(p, axis=axis), p, shrink


def finish(largest: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """1 / total and the log-sum-exp of each query; 0 and MASKED where it saw nothing."""
    seen = total > 0
    safe = jnp.where(seen, total, 1.0)
    return jnp.where(seen, 1 / safe, 0.0), jnp.where(seen, largest + jnp.log(safe), MASKED)


def weights(logits: jax.Array, visible: jax.Array, lse: jax.Array) -> jax.Array:
    """The weights again, from the log-sum-exp spread over the tile: P = e^{s − lse}."""
    return jnp.where(visible, jnp.exp(jnp.where(visible, logits - lse, 0.0)), 0.0)


def logit_gradients(p: jax.Array, dp: jax.Array, delta: jax.Array, visible: jax.Array) -> jax.Array:
    """ds = P ∘ (dP − δ), with dP = do·v and δ = rowsum(do ∘ o) spread over the tile.

    Zero where not visible: a value there may be so large that dP is infinite.
    """
    return jnp.where(visible, p * (dp - delta), 0.0)


def unit_logits(q: jax.Array, k: jax.Array, w: jax.Array) -> jax.Array:
    """What one hidden unit h adds to the additive score: w_h tanh(q_h + k_h)."""
    return w * jnp.tanh(q + k)


def unit_gradients(q: jax.Array, k: jax.Array, ds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One hidden unit's ds ∘ (1 − tanh²) and ds ∘ tanh.

    w_h times the first, summed over keys or queries, is dq_h or dk_h; the second, summed over both,
    is dw_h.
    """
    tanh = jnp.tanh(q + k)
    through = ds * tanh
    return ds - through * tanh, through
