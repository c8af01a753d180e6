"""What the range kernels compute, written out densely, in the type of the input."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.ops.kernels.pallas.ranges import Inputs, Seen, Visible


def visible_pairs(visible: Visible, num_keys: int) -> jax.Array:
    """[V, T, S] booleans."""

    def within(position, first, extent):
        position, first, extent = position[..., None, :], first[..., None], extent[..., None]
        return (position >= first) & (position < first + extent)

    shows = within(jnp.arange(num_keys)[None], visible.first, visible.extent)
    if visible.seen is not None:
        shows &= ~within(*visible.seen).any(1)
    return shows


def forward(x: Inputs, visible: Visible, scale: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """The context [M, T, D] and the log-sum-exp [M, T]; 0 and -1e30 where nothing is visible."""
    k, v = (jnp.repeat(y, x.group, axis=0) for y in (x.k, x.v))
    if x.w is None:
        logits = jnp.einsum("mth,msh->mts", x.q, k) * scale
    else:
        tanh = jnp.tanh(x.q[:, :, None] + k[:, None])
        logits = jnp.einsum("mh,mtsh->mts", x.w, tanh)
    shows = visible_pairs(visible, k.shape[1])
    shows = jnp.repeat(shows, logits.shape[0] // shows.shape[0], axis=0)
    sees = shows.any(2)
    logits = jnp.where(shows, logits, -jnp.inf)
    lse = jax.scipy.special.logsumexp(jnp.where(sees[..., None], logits, 0.0), axis=2)
    p = jnp.where(shows, jnp.exp(logits - lse[..., None]), 0)
    return jnp.einsum("mts,msd->mtd", p, v), jnp.where(sees, lse, -1e30)


def random_case(
    seed, *, score, rows=4, group=2, visible_rows=2, queries=32, keys=48, width=16, value_width=8,
    earlier=0, back=None, ahead=None,
):  # fmt: skip
    """Inputs in float64 NumPy and ranges that start anywhere; some queries see nothing."""
    rng = np.random.default_rng(seed)
    x = Inputs(
        rng.normal(size=(rows, queries, width)),
        rng.normal(size=(rows // group, keys, width)),
        rng.normal(size=(rows // group, keys, value_width)),
        rng.normal(size=(rows, width)) if score == "additive" else None,
    )

    def ranges(*shape):
        at = np.arange(queries)
        low = np.zeros_like(at) if back is None else at - back
        high = np.full_like(at, keys) if ahead is None else at + ahead + 1
        low, high = np.clip(low, 0, keys), np.clip(high, 0, keys)
        first = rng.integers(low, np.maximum(high, low + 1), size=(*shape, queries))
        extent = np.minimum(
            rng.integers(0, keys + 1, size=first.shape), np.maximum(high - first, 0)
        )
        return first.astype(np.int32), extent.astype(np.int32)

    seen = None
    if earlier:
        slot = np.argsort(rng.random((visible_rows, earlier, keys)), axis=2).astype(np.int32)
        seen = Seen(slot, *ranges(visible_rows, earlier))
    return x, Visible(*ranges(visible_rows), seen)
