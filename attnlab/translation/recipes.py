"""What is trained on what, with which sizes and for how long: the presets of `translate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from attnlab.training.optimizers import OptimizerSettings

__all__ = ["PRESETS", "Preset", "Recipe"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one model is trained.

    Attributes:
      sizes: attributes of its class.
      optimizer: of its parameters.
      steps: of training.
      batch_size: sentence pairs in a step.
      label_smoothing: ε of the loss.
    """

    sizes: Mapping[str, Any]
    optimizer: OptimizerSettings
    steps: int
    batch_size: int = 64
    label_smoothing: float = 0.0


@dataclasses.dataclass(frozen=True)
class Preset:
    """A recipe for each model on one kind of text.

    Attributes:
      recipes: by model.
      models: those that run unless others are named.
      tokenizer: "bytes" or "sentencepiece".
      vocab_size: of a sentencepiece vocabulary; source and target have one each.
      max_length: tokens of the longest pair that is trained on, and of the longest translation.
      validate_every: steps.
      beam_size: of the search; 1 = greedy.
      length_penalty: α of the search.
      dtype: of the computation.
    """

    recipes: Mapping[str, Recipe]
    models: tuple[str, ...]
    tokenizer: str = "sentencepiece"
    vocab_size: int = 0
    max_length: int = 60
    validate_every: int = 500
    beam_size: int = 5
    length_penalty: float = 1.0
    dtype: str = "float32"


_glorot = nn.initializers.glorot_uniform()


def _adam(learning_rate: float, warmup_steps: int, **changed: Any) -> OptimizerSettings:
    given: dict[str, Any] = {"schedule": "linear", "b2": 0.98, "clip_norm": 1.0}
    return OptimizerSettings(
        learning_rate=learning_rate, warmup_steps=warmup_steps, **(given | changed)
    )


def _bahdanau(embed: int, hidden: int, dropout: float) -> dict[str, Any]:
    """Sizes of RNNencdec; biases and Glorot's initialisation learn faster than the paper's."""
    return {
        "embed_features": embed,
        "hidden_features": hidden,
        "maxout_features": embed,
        "use_bias": True,
        "kernel_init": _glorot,
        "dropout_rate": dropout,
    }


def _search(embed: int, hidden: int, dropout: float) -> dict[str, Any]:
    """Sizes of RNNsearch: those of RNNencdec and the alignment model's."""
    return _bahdanau(embed, hidden, dropout) | {"align_features": hidden, "align_init": _glorot}


def _dates() -> Preset:
    """Characters of the embedded date task: a minute a model on two CPU cores.

    Expected: RNNsearch ≥ 98 % exact match on dates it has not seen, RNNencdec less.
    """
    search = Recipe(_search(64, 128, 0.0), _adam(3e-3, 50), steps=1200)
    return Preset(
        recipes={
            "rnn_search": search,
            "rnn_encdec": dataclasses.replace(search, sizes=_bahdanau(64, 128, 0.0)),
            "luong": dataclasses.replace(
                search, sizes={"embed_features": 64, "hidden_features": 128, "num_layers": 1}
            ),
            "nmt_attn": dataclasses.replace(
                search,
                sizes={
                    "features": 128,
                    "num_heads": 2,
                    "num_encoder_layers": 1,
                    "num_decoder_layers": 1,
                },
            ),
            "transformer": dataclasses.replace(
                search,
                sizes={
                    "num_layers": 2,
                    "width": 128,
                    "hidden": 256,
                    "num_heads": 4,
                    "dropout_rate": 0.0,
                    "pre_norm": True,
                },
                optimizer=_adam(2e-3, 200),
            ),
        },
        models=("rnn_search", "rnn_encdec"),
        tokenizer="bytes",
        max_length=40,
        validate_every=200,
        beam_size=1,
    )


def _cpu() -> Preset:
    """Multi30k on two CPU cores, under an hour a model."""

    def recipe(sizes: dict[str, Any]) -> Recipe:
        return Recipe(sizes, _adam(1e-3, 400), steps=4000, label_smoothing=0.1)

    return Preset(
        recipes={
            "rnn_search": recipe(_search(256, 256, 0.3)),
            "rnn_encdec": recipe(_bahdanau(256, 256, 0.3)),
            "luong": recipe(
                {
                    "embed_features": 256,
                    "hidden_features": 256,
                    "num_layers": 2,
                    "dropout_rate": 0.3,
                    "max_source_length": 60,
                }
            ),
            "nmt_attn": recipe({"features": 256, "dropout_rate": 0.3}),
            "transformer": recipe(
                {
                    "num_layers": 3,
                    "width": 256,
                    "hidden": 512,
                    "num_heads": 4,
                    "dropout_rate": 0.3,
                    "pre_norm": True,
                }
            ),
        },
        models=("rnn_search", "rnn_encdec", "transformer"),
        vocab_size=6000,
        validate_every=450,
    )


PRESETS = {"dates": _dates(), "cpu": _cpu()}
