"""What the tests of LSH attention share: small inputs, and the same function as a dense softmax."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks
from attnlab.ops import lsh
from tests import oracle_lsh

BATCH, LENGTH, HEADS, WIDTH, VALUE_WIDTH, ROUNDS, CHUNK, BUCKETS = 2, 23, 2, 5, 3, 3, 4, 3

# What a change of the future may change in the past: not one bit, but without AVX-512 the products
# of some rows of a tile round otherwise.
_CPUINFO = Path("/proc/cpuinfo")
LAST_BIT = 0.0 if _CPUINFO.exists() and "avx512f" in _CPUINFO.read_text() else 1e-6

# The rounds, which short inputs would not go through of themselves.
lsh_attention = functools.partial(lsh.lsh_attention, implementation="sorted")
STATIC = ("chunk_size", "causal", "options", "dropout_rate", "rows_at_once")
attend = jax.jit(lsh_attention, static_argnames=STATIC)


def inputs(seed=0, length=LENGTH, batch=BATCH, buckets=BUCKETS, dtype=np.float64):
    rng = np.random.default_rng(seed)
    qk = rng.normal(size=(batch, length, HEADS, WIDTH)).astype(dtype)
    v = rng.normal(size=(batch, length, HEADS, VALUE_WIDTH)).astype(dtype)
    return qk, v, rng.integers(0, buckets, size=(batch, ROUNDS, length, HEADS), dtype=np.int32)


def some_padding(seed=1, length=LENGTH, batch=BATCH):
    valid = np.random.default_rng(seed).random((batch, length)) < 0.7
    valid[:, :2] = False  # positions 0 and 1, where Trax leaks
    return valid


def key_mask(valid):
    return masks.Explicit(valid[:, None, None, :])


def fields_of(options):
    """The options as the oracle takes them."""
    return dataclasses.asdict(options) | {"strict": isinstance(options, lsh.LSHOptions)}


def counts_of(buckets, options, **where):
    """The oracle's counts for every example and head, [B, N, L, L]."""
    place = fields_of(options)
    for name in ("union", "logit_scale", "key_norm"):
        del place[name]
    return oracle_lsh.all_counts(buckets, **place, **where)


def dense(qk, v, times, *, scale=1.0, key_norm="rms", keep=1.0):
    """The same function as one dense softmax in plain JAX, for its automatic gradients.

    times [B, N, L, L]: how often each pair counts; a row of zeros gives the row's own value.
    """
    dtype = jnp.promote_types(qk.dtype, jnp.float32)
    square = jnp.sum(jnp.square(qk.astype(dtype)), -1, keepdims=True)
    norm = jnp.sqrt(square if key_norm == "l2" else square + 1e-6 * qk.shape[-1])
    keys = (qk / norm).astype(qk.dtype)
    logits = jnp.einsum("bqnh,bknh->bnqk", qk, keys, preferred_element_type=dtype) * scale
    logits = jnp.where(times > 0, logits + jnp.log(jnp.maximum(times, 1)), -1e30)
    alone = times.sum(-1, keepdims=True) == 0
    weights = jnp.where(alone, jnp.eye(qk.shape[1])[None, None], jax.nn.softmax(logits))
    weights = (weights * keep).astype(v.dtype)
    return jnp.einsum("bnqk,bknd->bqnd", weights, v, preferred_element_type=dtype).astype(v.dtype)


PLAIN = {norm: functools.partial(dense, key_norm=norm) for norm in ("rms", "l2")}


@functools.partial(jax.jit, static_argnames=("f",))
def value_and_gradients(f, qk, v, cotangent, **options):
    out, pull = jax.vjp(lambda qk, v: f(qk, v, **options), qk, v)
    return (out, *pull(cotangent.astype(out.dtype)))
