"""Real activations to hash: a small causal model of bytes, trained for a moment on a text.

x = E[byte] + P[position], then layers of shared-QK attention and a two-layer perceptron, both
behind a LayerNorm and beside a residual path, then the logits of the next byte. While training,
attention is exact, so that no hash has had a say in what the activations look like.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnlab import positions
from attnlab.modules.lsh import LSHSelfAttention
from attnlab.ops.lsh.attention import LSHOptions
from attnlab.ops.routes import LSH

LEARNING_RATE = 3e-3
WARMUP_STEPS = 10
WINDOW, BATCH = 512, 2  # bytes of a window, windows of a step


def exact(length: int) -> LSH:
    """Full shared-QK attention as a route: one chunk that holds everything."""
    options = LSHOptions(strict=False, same_bucket=False, look_back=0)
    return LSH(num_hashes=1, num_buckets=2, chunk_size=length, options=options)


class ByteModel(nn.Module):
    """Logits [B, L, 256] of the byte after each of [B, L].

    Attributes:
      num_layers: attention and perceptron, this many times.
      num_heads: N.
      head_dim: H; the model is N·H wide.
    """

    num_layers: int
    num_heads: int
    head_dim: int

    @nn.compact
    def __call__(self, tokens: jax.Array, start: jax.Array) -> jax.Array:
        """Logits of the next bytes; the first byte of row b stands at position start[b]."""
        length, width = tokens.shape[1], self.num_heads * self.head_dim
        x = nn.Embed(256, width, embedding_init=nn.initializers.normal(1.0))(tokens)
        x += positions.sinusoids(start[:, None] + jnp.arange(length)[None, :], width)
        for i in range(self.num_layers):
            attention = LSHSelfAttention(self.num_heads, exact(length), name=f"attention_{i}")
            x += attention(nn.LayerNorm()(x))
            hidden = nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))
            x += nn.Dense(width)(hidden)
        return nn.Dense(256)(nn.LayerNorm()(x))


def train(
    model: ByteModel,
    data: np.ndarray,
    *,
    length: int,
    steps: int,
    seed: int,
    progress: Callable[[str], None],
) -> tuple[Any, float | None]:
    """Parameters after `steps` of Adam on random windows of the text.

    A window stands at random positions below `length`, so that the model has seen them all.

    Args:
      model: what to train.
      data: uint8 [bytes], at least length + 1 of them.
      length: of the sequences that the model is wanted for.
      steps: of 2 windows of 512 bytes (or `length`, if less); 0 = only seeded.
      seed: of parameters and windows.
      progress: told how it goes.

    Returns:
      The parameters, and the loss of the last steps in bits a byte (None without any).
    """
    params = model.init(jax.random.key(seed), jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, LEARNING_RATE, WARMUP_STEPS, max(steps, WARMUP_STEPS + 1)
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, windows, start):
        def loss(params):
            logits = model.apply(params, windows[:, :-1], start)
            return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value / jnp.log(2)

    rng, size = np.random.default_rng(seed), min(WINDOW, length)
    losses: list[float] = []
    began = told = time.monotonic()
    for i in range(steps):
        first = rng.integers(0, data.size - size, size=(BATCH, 1))
        windows = data[first + np.arange(size + 1)].astype(np.int32)
        start = rng.integers(0, length - size + 1, size=BATCH)
        params, state, bits = step(params, state, windows, start)
        losses.append(float(bits))
        if not np.isfinite(losses[-1]):
            raise ValueError(f"the loss is {losses[-1]} at step {i}: training has diverged")
        if time.monotonic() - told > 10:
            told = time.monotonic()
            progress(
                f"  step {i + 1} of {steps}: {losses[-1]:.2f} bits a byte, {told - began:.0f} s"
            )
    return params, float(np.mean(losses[-10:])) if losses else None


def activations(
    model: ByteModel, params: Any, tokens: np.ndarray
) -> list[tuple[jax.Array, jax.Array]]:
    """The shared queries and keys and the values [B, L, N, H] of every layer, of bytes [B, L]."""

    def is_projection(module: nn.Module, _: str) -> bool:
        return module.name in ("query_key", "value")

    @jax.jit
    def run(params, tokens):
        start = jnp.zeros(len(tokens), jnp.int32)
        _, kept = model.apply(params, tokens, start, capture_intermediates=is_projection)
        return kept["intermediates"]

    kept = run(params, tokens.astype(np.int32))
    layers = [kept[f"attention_{i}"] for i in range(model.num_layers)]
    return [
        tuple(layer[name]["__call__"][0] for name in ("query_key", "value")) for layer in layers
    ]
