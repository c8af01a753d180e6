"""Weights of Hugging Face's BERT, for a model that computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.core.checks import require
from attnlab.core.tokens import PAD
from attnlab.models.bert.model import BertPretraining
from attnlab.models.hugging_face import ACTIVATIONS, Weights, changed_config
from attnlab.models.transformer.config import TransformerConfig

__all__ = ["from_hugging_face"]

# Buffers that old files hold, and the softmax's weights and biases by other names.
_AGAIN = (
    "position_ids",
    "token_type_ids",
    "predictions.decoder.weight",
    ".decoder.bias",
)


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
      KeyError: a configuration or weights that lack something.
    """
    c = _config(config, changed)
    require(
        not c.scan_layers, "weights are laid out a layer each; got scan_layers=True (leave it out)"
    )
    from_ = Weights(weights, "bert.", c.param_dtype)
    width = (c.width,)
    embeddings, head = "embeddings.", "cls.predictions."
    params: dict[str, Any] = {
        "bert": {
            "vocabulary": {
                "embedding": from_.table(
                    f"{embeddings}word_embeddings.weight", c.vocab_size, c.width
                )
            },
            "inputs": {
                "positions": from_.table(
                    f"{embeddings}position_embeddings.weight", c.max_length, c.width
                ),
                "types": from_.table(
                    f"{embeddings}token_type_embeddings.weight", c.num_types, c.width
                ),
                "norm": from_.norm(f"{embeddings}LayerNorm", c.width),
            },
            "encoder": {
                f"layer_{i}": _layer(c, from_, f"encoder.layer.{i}.") for i in range(c.num_layers)
            },
            "pooler": from_.dense("pooler.dense", width, width),
        },
        "transform": from_.dense(f"{head}transform.dense", width, width),
        "transform_norm": from_.norm(f"{head}transform.LayerNorm", c.width),
        "bias": from_.take(f"{head}bias", c.vocab_size),
        "next": {
            name: x[..., ::-1]
            for name, x in from_.dense("cls.seq_relationship", width, (2,)).items()
        },
    }
    from_.require_all_taken(but=_AGAIN)
    return BertPretraining(c), {"params": params}


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


def _layer(c: TransformerConfig, from_: Weights, name: str) -> dict[str, Any]:
    width, heads = (c.width,), (c.num_heads, c.width // c.num_heads)
    attention = {
        each: from_.dense(f"{name}attention.self.{each}", width, heads)
        for each in ("query", "key", "value")
    }
    return {
        "attention": attention
        | {"out": from_.dense(f"{name}attention.output.dense", heads, width)},
        "attention_norm": from_.norm(f"{name}attention.output.LayerNorm", c.width),
        "feed_forward": {
            "hidden": from_.dense(f"{name}intermediate.dense", width, (c.hidden,)),
            "out": from_.dense(f"{name}output.dense", (c.hidden,), width),
        },
        "feed_forward_norm": from_.norm(f"{name}output.LayerNorm", c.width),
    }
