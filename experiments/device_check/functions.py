"""What is timed on a device: attnlab's functions, the platform's flash attention, a tanh chain."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench import inputs, mechanisms
from attnlab.bench.case import Case
from attnlab.bench.mechanisms import Mechanism

FLASH = "flash"  # the platform's own flash attention, called without attnlab
TANH = "tanh"  # evaluations of tanh in chains of `CHAIN`, `length` for each of N * H numbers
CHAIN = 32
_TPU_BLOCK = 512  # of splash attention; its own default of 128 is slower


def build(case: Case, platform: str) -> Mechanism:
    """The program of a case on "cpu", "gpu" or "tpu"; a bare function of q, k, v [B, T, N, H]."""
    match case.mechanism:
        case "flash":
            return _pure(flash(platform, causal=case.causal), "query", "key", "value")
        case "tanh":
            return _pure(tanh_chain, "query")
    return mechanisms.build(case)


def flash_name(platform: str) -> str:
    """What `FLASH` is on a platform."""
    names = {"gpu": "jax.nn with cuDNN", "tpu": "splash attention", "cpu": "jax.nn, plain"}
    return names.get(platform, names["cpu"])


def flash(platform: str, *, causal: bool) -> Callable[..., jax.Array]:
    """A function (q, k, v [B, T, N, H]) -> [B, T, N, H]: the platform's maintained attention."""
    if platform == "tpu":
        return functools.partial(_splash, causal=causal)
    implementation: Any = "cudnn" if platform == "gpu" else None
    return functools.partial(
        jax.nn.dot_product_attention, is_causal=causal, implementation=implementation
    )


def _splash(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of

    length, heads, width = q.shape[1:]
    of_one_head = of.CausalMask((length, length)) if causal else of.FullMask((length, length))
    block = min(_TPU_BLOCK, length)
    names = "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute"
    sizes: dict[str, Any] = dict.fromkeys([*names.split(), "block_q_dq", "block_kv_dq"], block)
    kernel = splash.make_splash_mha(
        mask=of.MultiHeadMask([of_one_head] * heads),
        block_sizes=splash.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
    )
    q = q * jnp.asarray(1 / math.sqrt(width), q.dtype)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)


def tanh_chain(x: jax.Array) -> jax.Array:
    """tanh, `CHAIN` times: one fused loop that reads and writes each number once.

    Each step adds x; without it the numbers would go to zero.
    """
    y = x
    for _ in range(CHAIN):
        y = jnp.tanh(y) + x
    return y


def tanh_case(evaluations: int, dtype: str) -> Case:
    """The case of that many evaluations of tanh, in a shape that uses any device fully."""
    heads, width = 8, 128
    chains = evaluations // (heads * width * CHAIN)
    return Case(
        TANH,
        chains * CHAIN,
        num_heads=heads,
        head_dim=width,
        dtype=dtype,
        causal=False,
        ops_only=True,
    )


def tanh_evaluations(case: Case) -> int:
    """The evaluations of tanh in a `tanh_case`, or in the equation of additive attention.

    A pair of query and key needs one for each of H hidden units. Forward + backward needs two,
    because the backward pass of a program that keeps no [T, S, H] evaluates them again.
    """
    n = case.length
    if case.mechanism == TANH:
        return n * case.num_heads * case.head_dim
    pairs = n * (n + 1) // 2 if case.causal else n * n
    once = case.batch * case.num_heads * pairs * case.head_dim
    return once if case.passes == "forward" else 2 * once


def shape(case: Case) -> tuple[int, ...]:
    """The shape [B, T, N, H] of each stream."""
    length = case.length // CHAIN if case.mechanism == TANH else case.length
    return (case.batch, length, case.num_heads, case.head_dim)


def arrays(case: Case, text: inputs.Text) -> dict[str, jax.Array]:
    """The streams and a cotangent, made on the device: each [B, T, N, H] of the case's dtype."""
    batch, length, heads, width = sizes = shape(case)
    if case.mechanism == TANH:
        return {"query": jax.random.normal(jax.random.key(1), sizes, case.dtype)}

    @jax.jit
    def make(windows: jax.Array, table: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
        streams = inputs.embed(jnp, windows, table, weights)
        streams["cotangent"] = jax.random.normal(jax.random.key(1), sizes, case.dtype)
        return {name: x.reshape(sizes).astype(case.dtype) for name, x in streams.items()}

    tables = inputs.tables(heads * width)
    return jax.block_until_ready(make(text.windows(batch, length), *tables))


def lowered_case(case: Case) -> Case:
    """The case from which `programs.lower` gets the shapes of the arguments."""
    return dataclasses.replace(case, length=shape(case)[1])


def _pure(function: Callable[..., jax.Array], *streams: str) -> Mechanism:
    """A mechanism without parameters."""

    def apply(parameters: Any, *arrays: jax.Array) -> jax.Array:
        del parameters
        return function(*arrays)

    return Mechanism(lambda key: {}, apply, streams, split_heads=True)
