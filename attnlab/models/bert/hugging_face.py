"""Weights of Hugging Face's BERT, for a model that computes the same, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.core.checks import require
from attnlab.core.tokens import PAD
from attnlab.models.bert.model import BertPretraining
from attnlab.models.hugging_face import ACTIVATIONS, changed_config, dense, norm, read, table, write
from attnlab.models.transformer.config import TransformerConfig

_BUFFERS = ("position_ids", "token_type_ids")  # in old files
# The softmax's weights and biases by other names.
_AGAIN = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def from_hugging_face(
    config: Mapping[str, Any], weights: Mapping[str, Any], **changed: Any
) -> tuple[BertPretraining, dict[str, Any]]:
    """A model that computes what Hugging Face's `BertForPreTraining` does, and its variables.

    Its variables at "bert" are those of `Bert`, which is theirs of `BertModel`. Their NSP's class
    0 is a segment that follows; here that is class 1, as `Pretraining.next` says.

    Args:
      config: fields of its configuration, by name, as `config.to_dict()` or config.json has them.
      weights: arrays of its state, by name, as `state_dict()` or a file has them. Those of a
        `BertModel`, which lack the heads, are refused.
      **changed: other fields of `TransformerConfig` that leave the function as it is, such as
        `dtype=jnp.bfloat16`; not scan_layers.

    Raises:
      ValueError: a configuration with what this model has not, or weights of another one.
      KeyError: a configuration that lacks something.
    """
    c = _config(config, changed)
    places = _places(c)
    params = read(places, weights, c.param_dtype, prefix="bert.", besides=(*_BUFFERS, *_AGAIN))
    return BertPretraining(c), {"params": params}


def to_hugging_face(
    config: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Weights of Hugging Face's `BertForPreTraining`, the inverse of `from_hugging_face`.

    They are for `load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})`. The
    parameters of a `Bert` are those at "bert"; a `BertModel` has the weights whose names begin so.

    Args:
      config: fields of its configuration, as for `from_hugging_face`.
      variables: variables of the model that `from_hugging_face` makes of the configuration.

    Raises:
      ValueError: a configuration with what this model has not, or parameters of another one.
      KeyError: a configuration that lacks something.
    """
    weights = write(_places(_config(config, {})), variables["params"])
    return weights | {name: weights[same] for name, same in _AGAIN.items()}


def _places(c: TransformerConfig) -> dict[str, Any]:
    """The place of each parameter."""
    width = (c.width,)
    embeddings, head = "bert.embeddings.", "cls.predictions."
    following = dense("cls.seq_relationship", width, (2,))
    return {
        "bert": {
            "vocabulary": {
                "embedding": table(f"{embeddings}word_embeddings.weight", c.vocab_size, c.width)
            },
            "inputs": {
                "positions": table(
                    f"{embeddings}position_embeddings.weight", c.max_length, c.width
                ),
                "types": table(f"{embeddings}token_type_embeddings.weight", c.num_types, c.width),
                "norm": norm(f"{embeddings}LayerNorm", c.width),
            },
            "encoder": {
                f"layer_{i}": _layer(c, f"bert.encoder.layer.{i}.") for i in range(c.num_layers)
            },
            "pooler": dense("bert.pooler.dense", width, width),
        },
        "transform": dense(f"{head}transform.dense", width, width),
        "transform_norm": norm(f"{head}transform.LayerNorm", c.width),
        "bias": table(f"{head}bias", c.vocab_size),
        "next": {
            name: dataclasses.replace(place, reversed=True) for name, place in following.items()
        },
    }


def _config(config: Mapping[str, Any], changed: Mapping[str, Any]) -> TransformerConfig:
    known = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
    }
    for name, value in known.items():
        got = config.get(name, value)
        require(got == value, f"this model computes what {name}={value!r} does; got {got!r}")
    given: dict[str, Any] = {
        "num_layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "hidden": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "max_length": config["max_position_embeddings"],
        "num_types": config["type_vocab_size"],
        "activation": ACTIVATIONS[config["hidden_act"]],
        "norm_epsilon": config["layer_norm_eps"],
        "dropout_rate": config["hidden_dropout_prob"],
        "attention_dropout_rate": config["attention_probs_dropout_prob"],
    }
    return changed_config(TransformerConfig.bert(config["vocab_size"], **given), changed)


def _layer(c: TransformerConfig, name: str) -> dict[str, Any]:
    width, heads = (c.width,), (c.num_heads, c.width // c.num_heads)
    attention = {
        each: dense(f"{name}attention.self.{each}", width, heads)
        for each in ("query", "key", "value")
    }
    return {
        "attention": attention | {"out": dense(f"{name}attention.output.dense", heads, width)},
        "attention_norm": norm(f"{name}attention.output.LayerNorm", c.width),
        "feed_forward": {
            "hidden": dense(f"{name}intermediate.dense", width, (c.hidden,)),
            "out": dense(f"{name}output.dense", (c.hidden,), width),
        },
        "feed_forward_norm": norm(f"{name}output.LayerNorm", c.width),
    }
