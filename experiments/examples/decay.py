"""Attention that decays with the distance, without a softmax: linear in the length.

    o_i = Σ_{j ≤ i} γ^(i−j) (q_i·k_j / √H) v_j

Sun et al. 2023, "Retentive Network", §2.1, computed in chunks (§2.3). One γ for all heads, and none
of what is around it there: rotary positions are the module's, norm and gate are left out.

Cost: O(T·H·(C + D)) time and O(T) memory for chunks of C; a token decoded O(S·H·D).
"""

import functools

import jax
import jax.numpy as jnp

from attnlab import masks


def decay(q, k, v, *, mask=None, rate=0.97, chunk=64):
    """Linear attention that decays, retention: γ^(i−j) q·k, γ = rate; causal by itself."""
    *batch, _, heads, _ = q.shape
    seen = masks.visible_keys(mask, k.shape[-3])[..., None, :]
    seen = jnp.broadcast_to(seen, (*batch, heads, k.shape[-3]))
    first = jnp.broadcast_to(jnp.asarray(masks.first_position(mask))[..., None], (*batch, heads))
    of_heads = jnp.vectorize(
        functools.partial(_of_one_head, rate=rate, chunk=chunk),
        signature="(t,h),(s,h),(s,d),(s),()->(t,d)",
    )
    q = jnp.moveaxis(q, -2, -3)
    k = jnp.repeat(jnp.moveaxis(k, -2, -3), heads // k.shape[-2], axis=-3)
    v = jnp.repeat(jnp.moveaxis(v, -2, -3), heads // v.shape[-2], axis=-3)
    return jnp.moveaxis(of_heads(q, k, v, seen, first), -3, -2).astype(v.dtype)


def _of_one_head(q, k, v, seen, first, *, rate, chunk):
    """The context [T, D] of queries [T, H] that stand from position `first` on."""
    num_queries, num_keys = len(q), len(k)
    chunk = min(chunk, num_queries)
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    k = jnp.where(seen[:, None], k, 0).astype(dtype)
    v = jnp.where(seen[:, None], v, 0).astype(dtype)
    q = jnp.pad(q.astype(dtype), [(0, -num_queries % chunk), (0, 0)]) / q.shape[-1] ** 0.5

    # The state Σ_j γ^(i−j) k_j v_jᵀ of the keys before a chunk, i its first position.
    before = first - jnp.arange(num_keys)
    faded = jnp.where(before > 0, rate ** before.astype(dtype), 0)
    state = (faded[:, None] * k).T @ v
    places = first + jnp.arange(len(q))
    places = jnp.where(places < 0, num_keys, places)  # where there is no key
    k = k.at[places].get(mode="fill", fill_value=0)
    v = v.at[places].get(mode="fill", fill_value=0)

    i = jnp.arange(chunk, dtype=dtype)[:, None]
    decays = jnp.tril(rate ** (i - i.T))

    def step(state, of_chunk):
        q, k, v = of_chunk
        context = rate**i * (q @ state) + (jnp.tril(q @ k.T) * decays) @ v
        return rate**chunk * state + (rate ** (chunk - i) * k).T @ v, context

    chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, x.shape[-1]), (q, k, v))
    _, context = jax.lax.scan(step, state, chunks)
    return context.reshape(-1, v.shape[-1])[:num_queries]
