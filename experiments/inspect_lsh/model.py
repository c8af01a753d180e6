"""Real activations to hash: those of a small causal model, trained for a moment on a text's bytes.

In each layer queries and keys are one projection, as LSH attention needs it. The model is trained
with exact attention, so that no hash has an influence on its activations.
"""

import hashlib
import itertools
import math
from pathlib import Path
from typing import Any

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs
from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.windows import Windows, as_tokens, random_windows
from attnlab.models.activations import shared_projections
from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.ops.routes import LSH
from attnlab.runs.errors import Invalid
from attnlab.training.curve import read_metrics
from attnlab.training.loop import LoopSettings, Task
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from attnlab.training.run import keep_compiled, run_training
from experiments.inspect_lsh.settings import Settings

WINDOW, BATCH = 512, 2  # bytes in a window, windows in a step


def split(text: inputs.Text, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes to train on, and the last `length` bytes, to measure on.

    Raises:
      Invalid: the text is too short for both.
    """
    needed = 2 * length + 1
    if text.data.size < needed:
        raise Invalid(
            f"--length={length} needs {needed} bytes, to train and to measure on; {text.name} has"
            f" {text.data.size} (give a longer --input or a smaller --length)"
        )
    return text.data[:-length], text.data[-length:]


def build(settings: Settings, length: int) -> TransformerLM:
    """The model for inputs of `length` bytes; its parameters do not depend on the length."""
    width = settings.num_heads * settings.head_dim
    config = TransformerConfig(
        NUM_SPECIAL + 256,
        num_layers=settings.num_layers,
        width=width,
        hidden=4 * width,
        num_heads=settings.num_heads,
        pre_norm=True,
        activation=nn.gelu,
        dropout_rate=0.0,
    )
    # One bucket and chunk that hold everything: full attention with shared queries and keys.
    exact = LSH(num_hashes=1, num_buckets=1, chunk_size=length)
    return TransformerLM(config, config.attention(exact))


def train(
    settings: Settings, data: np.ndarray, held_out: np.ndarray, folder: Path
) -> tuple[Any, float | None]:
    """The model's variables after `train_steps` on random windows of a text, uint8 [bytes].

    If `folder`, which is for this alone, has the training or its beginning, only the rest is done.

    Returns:
      The variables, and the loss of the last steps in bits per byte (None without training).

    Raises:
      Diverged: the loss is not finite.
      Invalid: the folder has another training, or lost the curve of this one.
      KeyboardInterrupt: a signal ended the training; what is done is in the folder.
    """
    size = min(WINDOW, settings.length)
    model = build(settings, size)
    if not settings.train_steps:
        tokens = jnp.full((1, size), NUM_SPECIAL)
        return jax.jit(model.init)(jax.random.key(settings.seed), tokens), None
    keep_compiled()
    training = run_training(
        Task(
            model,
            TokenCrossEntropy(),
            windows(data, size, settings.length, settings.seed),
            lambda: itertools.islice(windows(held_out, size, settings.length, settings.seed), 1),
            settings.as_json() | {"text": hashlib.sha256(data.tobytes()).hexdigest()},
        ),
        settings=LoopSettings(
            settings.train_steps,
            log_every=max(10, settings.train_steps // 10),
            validate_every=settings.train_steps,
            seed=settings.seed,
        ),
        optimizer=OptimizerSettings(
            learning_rate=3e-3,
            schedule="linear",
            warmup_steps=min(10, settings.train_steps - 1),
            clip_norm=1.0,
        ),
        parallel=parallel_over("jit", jax.local_devices()[:1]),
        folder=folder,
    )
    curve = [row for row in read_metrics(folder) if row["kind"] == "training"]
    if not curve:
        raise Invalid(f"{folder}: its curve is gone; delete the folder, and it is trained again")
    return training.variables, curve[-1]["nll"] / math.log(2)


def windows(data: np.ndarray, size: int, length: int, seed: int) -> grain.IterDataset:
    """Endless batches of {"tokens", "positions"}, int32 [BATCH, size].

    The positions of each window begin at a random number, so that the model is trained on all the
    `length` positions at which it is measured.
    """
    of_text = Windows(data, size, first_id=NUM_SPECIAL)
    return random_windows(of_text, batch_size=BATCH, seed=seed, num_positions=length)


def activations(
    settings: Settings, variables: Any, data: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    """Queries, which are the keys, and values of all layers, [layers, L, N, H], on bytes [L]."""
    model = build(settings, data.size)

    @jax.jit
    def run(variables, tokens):
        return shared_projections(model, variables, tokens)

    qk, v = run(variables, as_tokens(data, NUM_SPECIAL)[None])
    return qk[:, 0], v[:, 0]
