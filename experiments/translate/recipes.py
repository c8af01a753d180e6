"""The presets of `translate`: its flags, and for each model how it is trained."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from attnlab.models.cells import uniform_around_zero
from attnlab.training.optimizers import OptimizerSettings


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one model is trained.

    Attributes:
      sizes: attributes of the model's class.
      optimizer: optimizer of the parameters.
      steps: number of training steps.
      batch_size: number of sentence pairs in a step.
      label_smoothing: ε of the loss.
      joint_vocabulary: whether source and target share one vocabulary (Vaswani 2017 §5.1), where an
        id means the same on both sides, and the Transformer has one embedding for both; False = a
        vocabulary each.
      gradient_mean_over: "tokens" or "sentences", as in `TokenCrossEntropy`. A clip norm, or a
        learning rate of SGD, fits only one of them: a mean over sentences of 27 tokens is a
        gradient 27 × as long.
    """

    sizes: Mapping[str, Any]
    optimizer: OptimizerSettings
    steps: int
    batch_size: int = 64
    label_smoothing: float = 0.0
    joint_vocabulary: bool = False
    gradient_mean_over: str = "tokens"

    def as_json(self) -> dict[str, Any]:
        """The recipe as JSON values, functions by name; a checkpoint of another is refused."""
        text = json.dumps(
            dataclasses.asdict(self), default=lambda x: getattr(x, "__name__", repr(x))
        )
        return json.loads(text)


_glorot = nn.initializers.glorot_uniform()


def _adam(learning_rate: float, warmup_steps: int, **changed: Any) -> OptimizerSettings:
    given: dict[str, Any] = {"schedule": "linear", "b2": 0.98, "clip_norm": 1.0}
    return OptimizerSettings(
        learning_rate=learning_rate, warmup_steps=warmup_steps, **(given | changed)
    )


def _bahdanau(embed: int, hidden: int, dropout: float) -> dict[str, Any]:
    """Sizes of RNNencdec; with biases and Glorot's initialization it learns faster."""
    return {
        "embed_features": embed,
        "hidden_features": hidden,
        "maxout_features": embed,
        "use_bias": True,
        "kernel_init": _glorot,
        "dropout_rate": dropout,
    }


def _search(embed: int, hidden: int, dropout: float) -> dict[str, Any]:
    """Sizes of RNNsearch: those of RNNencdec, and of the alignment model."""
    return _bahdanau(embed, hidden, dropout) | {"align_features": hidden, "align_init": _glorot}


def _luong(width: int, dropout: float) -> dict[str, Any]:
    """Sizes of Luong's model, and first weights that are as wide as the paper's ±0.1 of 1000."""
    return {
        "embed_features": width,
        "hidden_features": width,
        "num_layers": 2,
        "dropout_rate": dropout,
        "kernel_init": uniform_around_zero(round(0.1 * math.sqrt(1000 / width), 2)),
    }


def _britz(width: int, dropout: float) -> dict[str, Any]:
    """Sizes of Britz's model, whose attention is as wide as its states."""
    return {
        "embed_features": width,
        "hidden_features": width,
        "attention_features": width,
        "dropout_rate": dropout,
    }


def _transformer(num_layers: int, width: int, hidden: int, dropout: float) -> dict[str, Any]:
    """Sizes of a small pre-norm Transformer, which learns without a long warm-up."""
    return {
        "num_layers": num_layers,
        "width": width,
        "hidden": hidden,
        "num_heads": 4,
        "dropout_rate": dropout,
        "pre_norm": True,
    }


def _dates() -> dict[str, Recipe]:
    """Dates, read as characters: one to three minutes per model on two CPU cores.

    Expected: RNNsearch ≥ 98 % exact match on dates it has not seen, RNNencdec less.
    """
    search = Recipe(_search(64, 128, 0.0), _adam(3e-3, 50), steps=1200)
    return {
        "rnn_search": search,
        "rnn_encdec": dataclasses.replace(search, sizes=_bahdanau(64, 128, 0.0)),
        "luong": dataclasses.replace(
            search, sizes=_luong(128, 0.0) | {"embed_features": 64, "num_layers": 1}
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
        "britz": dataclasses.replace(search, sizes=_britz(128, 0.0)),
        "transformer": dataclasses.replace(
            search,
            sizes=_transformer(2, 128, 256, 0.0),
            optimizer=_adam(2e-3, 200),
            joint_vocabulary=True,
        ),
    }


def _cpu() -> dict[str, Recipe]:
    """Multi30k on a CPU, about an hour a model on one core.

    Reached: Transformer 41 BLEU, RNNsearch 38 (de → en, test_2016_flickr).
    """

    def recipe(sizes: dict[str, Any], **changed: Any) -> Recipe:
        return Recipe(sizes, _adam(1e-3, 400), steps=8000, label_smoothing=0.1, **changed)

    return {
        "rnn_search": recipe(_search(256, 256, 0.3)),
        "rnn_encdec": recipe(_bahdanau(256, 256, 0.3)),
        "luong": recipe(_luong(256, 0.3) | {"max_source_length": 60}),
        "nmt_attn": recipe({"features": 256, "dropout_rate": 0.3}),
        "britz": recipe(_britz(256, 0.3)),
        "transformer": recipe(_transformer(3, 256, 512, 0.3), joint_vocabulary=True),
    }


def _small() -> dict[str, Recipe]:
    """Multi30k with models 128 wide: five to eight minutes a model on one CPU core.

    `tables --scale=cpu` trains them for more steps, all of them for as many.
    """

    def recipe(sizes: dict[str, Any]) -> Recipe:
        return Recipe(sizes, _adam(3e-3, 150), steps=1200)

    return {
        "rnn_search": recipe(_search(128, 128, 0.1)),
        "rnn_encdec": recipe(_bahdanau(128, 128, 0.1)),
        "luong": recipe(_luong(128, 0.1) | {"max_source_length": 40}),
        "nmt_attn": recipe({"features": 128, "dropout_rate": 0.1}),
        "britz": recipe(_britz(128, 0.1)),
        "transformer": Recipe(
            _transformer(2, 128, 256, 0.1),
            _adam(2e-3, 150),
            steps=800,
            joint_vocabulary=True,
            label_smoothing=0.1,
        ),
    }


def _gpu() -> dict[str, Recipe]:
    """Multi30k on one H200, in bfloat16, under ten minutes per model.

    Aimed at: RNNsearch 30 BLEU, Transformer 34 (de → en, test_2016_flickr). Not run yet.
    """

    def recipe(sizes: dict[str, Any], learning_rate: float, steps: int, **changed: Any) -> Recipe:
        optimizer = _adam(learning_rate, 500)
        return Recipe(sizes, optimizer, steps, batch_size=128, label_smoothing=0.1, **changed)

    return {
        "rnn_search": recipe(_search(512, 512, 0.5), 1e-3, 6000),
        "rnn_encdec": recipe(_bahdanau(512, 512, 0.5), 1e-3, 6000),
        "luong": recipe(_luong(512, 0.4) | {"max_source_length": 60}, 1e-3, 6000),
        "nmt_attn": recipe({"features": 512, "dropout_rate": 0.4}, 1e-3, 6000),
        "britz": recipe(_britz(512, 0.4), 1e-3, 6000),
        "transformer": recipe(_transformer(4, 256, 1024, 0.3), 2e-3, 10000, joint_vocabulary=True),
    }


def _paper() -> dict[str, Recipe]:
    """The papers' sizes and optimizers, for WMT14 on several accelerators, days. Not run.

    Bahdanau 2014 §A, §B; Luong 2015 §4.1 (where the learning rate is halved after each epoch; here
    it falls linearly); Vaswani 2017 §5, whose 25,000 tokens a batch are about 800 pairs; trax's
    NMTAttn. All read subwords: the Transformer's two languages share 37,000, as in the paper; for
    the other models each language has 32,000. Bahdanau's and Luong's programs divide the loss of a
    batch by the number of its sentences, so their rates and clip norms are for that gradient; the
    later papers divide by the number of tokens. Vaswani tests the mean of the last five
    checkpoints, ten minutes apart (§6.1): --average=5 with --checkpoint_every.
    """
    search = Recipe({}, _ADADELTA, steps=288_000, batch_size=80, gradient_mean_over="sentences")
    return {
        "rnn_search": search,
        "rnn_encdec": dataclasses.replace(search, steps=600_000),
        "luong": Recipe(
            {"dropout_rate": 0.2, "window": "local-p", "max_source_length": 100},
            OptimizerSettings("sgd", learning_rate=1.0, schedule="linear", clip_norm=5.0),
            steps=420_000,
            batch_size=128,
            gradient_mean_over="sentences",
        ),
        "nmt_attn": Recipe({}, _adam(1e-3, 1000), steps=100_000, batch_size=128),
        "britz": Recipe(
            {"dropout_rate": 0.2},
            OptimizerSettings("adam", 1e-4, clip_norm=5.0),
            steps=2_500_000,
            batch_size=128,
        ),
        "transformer": Recipe(
            {},
            OptimizerSettings("adam", (512 * 4000) ** -0.5, "rsqrt", 4000, b2=0.98, epsilon=1e-9),
            steps=100_000,
            batch_size=800,
            label_smoothing=0.1,
            joint_vocabulary=True,
        ),
    }


_ADADELTA = OptimizerSettings("adadelta", learning_rate=1.0, clip_norm=1.0)
RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "dates": _dates(),
    "small": _small(),
    "cpu": _cpu(),
    "gpu": _gpu(),
    "paper": _paper(),
}
# Ids in the SentencePiece vocabulary of one side, and in that which both share; dates are bytes.
VOCAB_SIZES = {
    "small": (3000, 4000),
    "cpu": (6000, 8000),
    "gpu": (8000, 10_000),
    "paper": (32_000, 37_000),
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dates": {},
    "small": {
        "models": ("rnn_search", "rnn_encdec", "luong", "nmt_attn", "britz", "transformer"),
        "validate_every": 400,
        "pad_to": 8,
    },
    "cpu": {
        "models": ("rnn_search", "rnn_encdec", "transformer"),
        "max_length": 60,
        "validate_every": 450,
        "beam_size": 5,
        "pad_to": 8,
    },
    "gpu": {
        "models": ("rnn_search", "rnn_encdec", "luong", "nmt_attn", "transformer"),
        "max_length": 60,
        "validate_every": 500,
        "beam_size": 5,
        "dtype": "bfloat16",
    },
    "paper": {
        "models": ("rnn_search", "rnn_encdec", "luong", "transformer"),
        "max_length": 100,
        "validate_every": 2000,
        "beam_size": 4,
        "length_penalty": (0.6,),
        "dtype": "bfloat16",
    },
}
