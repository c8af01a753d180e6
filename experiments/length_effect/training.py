"""RNNencdec and RNNsearch with the same sizes, on words of 1 to `max_length` symbols."""

from __future__ import annotations

from typing import Any

import flax.linen as nn

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.tokenizers import Numbers
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.training.loop import Task
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from experiments.length_effect.settings import TRAINING, VALIDATION, Settings

__all__ = ["MODELS", "build", "optimizer", "task"]

MODELS = ("rnn_encdec", "rnn_search")
# Settings that must be the same to go on from a checkpoint.
_IDENTITY = (
    "task",
    "num_symbols",
    "max_length",
    "lengths",
    "examples",
    "embed_features",
    "hidden_features",
    "steps",
    "batch_size",
    "learning_rate",
    "validate_every",
    "seed",
)


def build(name: str, settings: Settings) -> Seq2Seq:
    """The model of that name.

    Args:
      name: name of the model, one of `MODELS`.
      settings: settings of the run, with the widths and the number of symbols.
    """
    glorot = nn.initializers.glorot_uniform()
    vocab_size = Numbers(settings.num_symbols + 1).vocab_size
    embed, hidden = settings.embed_features, settings.hidden_features
    sizes: dict[str, Any] = {
        "embed_features": embed,
        "hidden_features": hidden,
        "maxout_features": embed,
        "use_bias": True,  # biases and Glorot's initialization learn faster than the paper's
        "kernel_init": glorot,
    }
    if name == "rnn_encdec":
        return RNNEncDec(vocab_size, vocab_size, **sizes)
    return RNNSearch(vocab_size, vocab_size, align_features=hidden, align_init=glorot, **sizes)


def optimizer(settings: Settings) -> OptimizerSettings:
    """Adam with a short warm-up."""
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        schedule="linear",
        warmup_steps=min(100, settings.steps // 2),
        b2=0.98,
        clip_norm=1.0,
    )


def task(name: str, settings: Settings) -> Task[Seq2Seq]:
    """The training of one model: model, loss and words.

    Args:
      name: name of the model.
      settings: settings of the run.
    """
    tokenizer = Numbers(settings.num_symbols + 1)
    longest = settings.max_length
    batches = train_batches(
        settings.words(1, longest, TRAINING),
        tokenizer,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=longest + 1,  # and EOS
        seed=settings.seed,
        num_workers=settings.num_workers,
    )
    held_out = settings.words(1, longest, VALIDATION, size=4 * settings.batch_size)
    validation = [
        batch
        for _, batch in evaluation_batches(
            held_out, tokenizer, tokenizer, batch_size=settings.batch_size
        )
    ]
    kept = settings.as_json()
    identity = {"model": name, **{flag: kept[flag] for flag in _IDENTITY}}
    model = build(name, settings)
    return Task(model, TokenCrossEntropy(), batches, lambda: validation, identity)
