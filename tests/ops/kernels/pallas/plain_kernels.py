"""A stand-in for a kernel: the same functions, computed densely. For tests of what calls them."""

import jax
import jax.numpy as jnp

from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible
from tests.ops.kernels.pallas import plain_ranges


def refusal(x: Inputs, visible: Visible, config: Config) -> str | None:
    return None


def forward(x: Inputs, visible: Visible, config: Config) -> tuple[jax.Array, jax.Array]:
    context, lse = plain_ranges.forward(x, visible, config.scale)
    return context.astype(config.dtype) * promises_kept(x, visible, config), lse


def backward(x: Inputs, visible: Visible, config: Config, dout, lse, delta):
    k, v = (jnp.repeat(y, x.group, axis=0) for y in (x.k, x.v))

    def logits(q, k, w):
        if w is None:
            return jnp.einsum("mth,msh->mts", q, k) * config.scale
        return jnp.einsum("mh,mtsh->mts", w, jnp.tanh(q[:, :, None] + k[:, None]))

    s, pull_back = jax.vjp(logits, x.q, k, x.w)
    shows = plain_ranges.visible_pairs(visible, k.shape[1])
    shows = jnp.repeat(shows, len(s) // len(shows), axis=0)
    p = jnp.where(shows, jnp.exp(s - lse[..., None]), 0)
    ds = p * (jnp.einsum("mtd,msd->mts", dout, v) - delta[..., None])
    dq, dk, dw = pull_back(ds)
    dv = jnp.einsum("mts,mtd->msd", p, dout)
    dk, dv = (y.reshape(-1, x.group, *y.shape[1:]).sum(1) for y in (dk, dv))
    return dq * promises_kept(x, visible, config), dk, dv, dw


def promises_kept(x: Inputs, visible: Visible, config: Config) -> jax.Array:
    """1 if everything is as `Inputs`, `Visible` and `Config` promise it to a kernel, else NaN."""
    assert x.q.shape[1] % config.block_q == 0 and x.k.shape[1] % config.block_k == 0
    assert x.q.shape[0] % visible.first.shape[0] == 0
    at = jnp.arange(x.q.shape[1])[None]
    stop = visible.first + visible.extent
    kept = (visible.first >= 0) & (stop <= x.k.shape[1])
    if config.back is not None:
        kept &= visible.first >= at - config.back
    if config.ahead is not None:
        kept &= stop - 1 <= at + config.ahead
    return jnp.where(jnp.all(kept | (visible.extent == 0)), 1.0, jnp.nan)
