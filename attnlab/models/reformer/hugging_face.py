"""Weights of Hugging Face's `ReformerModelWithLMHead`, for a `Reformer` of its kind, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnlab.core.checks import require
from attnlab.models.hugging_face import (
    ACTIVATIONS,
    Place,
    changed_config,
    dense,
    matrix,
    norm,
    read,
    table,
    write,
)
from attnlab.models.reformer.model import Reformer
from attnlab.models.transformer.config import TransformerConfig
from attnlab.ops import routes
from attnlab.ops.lsh import TRAX

# The softmax's bias: recent releases add the first and leave the second at 0; old files hold the
# second, alone or under both names.
_BIASES = ("lm_head.decoder.bias", "lm_head.bias")
# What may remain: constants that old files hold, and the bias by its other name.
_AGAIN = ("mask_value_float16", "mask_value_float32", *_BIASES)


def from_hugging_face(
    config: Mapping[str, Any], weights: Mapping[str, Any], **changed: Any
) -> tuple[Reformer, dict[str, Any]]:
    """A model that computes what Hugging Face's does, and its variables.

    Their logits after tokens [B, T] are `model.apply(variables, None, tokens, method="decode")`.
    Their LSH lets chunk borders decide who is seen, so that later tokens change earlier outputs,
    and so does this model. The rotations are random on both sides, so the outputs agree where the
    buckets do.

    Args:
      config: fields of its configuration, by name, as `config.to_dict()` or config.json has them.
      weights: arrays of its state, by name, as `state_dict()` or a file has them; torch tensors of
        float32 or float16 on the CPU are arrays too. Those of a `ReformerModel`, which lack the
        softmax, are refused.
      **changed: other fields of `TransformerConfig` that leave the function as it is, such as
        `dtype=jnp.bfloat16`; not scan_layers.

    Raises:
      ValueError: a configuration with what this model has not, or weights of another one.
      KeyError: a configuration that lacks something.
    """
    model = _model(config, changed)
    c = model.config
    bias = next((name for name in _BIASES if name in weights), _BIASES[-1])
    places = _places(c, config["attn_layers"], bias)
    params = read(places, weights, c.param_dtype, prefix="reformer.", besides=_AGAIN)
    return model, {"params": params}


def to_hugging_face(
    config: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Weights of Hugging Face's `ReformerModelWithLMHead`, the inverse of `from_hugging_face`.

    They are for `load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})`.

    Args:
      config: fields of its configuration, as for `from_hugging_face`.
      variables: variables of the model that `from_hugging_face` makes of the configuration, or of
        one of the same parameters.

    Raises:
      ValueError: a configuration with what this model has not, or parameters of another one.
      KeyError: a configuration that lacks something.
    """
    used, unused = _BIASES
    places = _places(_model(config, {}).config, config["attn_layers"], used)
    weights = write(places, variables["params"])
    return weights | {unused: np.zeros_like(weights[used])}


def _places(c: TransformerConfig, kinds: Sequence[str], bias: str) -> dict[str, Any]:
    """The place of each parameter, that of the softmax's bias being of this name."""
    return {
        "vocabulary": {
            "embedding": table("reformer.embeddings.word_embeddings.weight", c.vocab_size, c.width)
        },
        "inputs": _positions(c),
        "decoder": {
            f"layer_{i}": _layer(c, f"reformer.encoder.layers.{i}.", kind == "lsh")
            for i, kind in enumerate(kinds)
        },
        "norm": norm("reformer.encoder.layer_norm", 2 * c.width),
        "softmax": {
            "kernel": matrix("lm_head.decoder.weight", (2 * c.width,), (c.vocab_size,)),
            "bias": table(bias, c.vocab_size),
        },
    }


def _model(config: Mapping[str, Any], changed: Mapping[str, Any]) -> Reformer:
    """The model that a configuration describes, without its weights."""
    causal = {"is_decoder": True, "local_num_chunks_after": 0, "lsh_num_chunks_after": 0}
    for name, value in causal.items():
        got = config.get(name)
        require(got == value, f"a language model has {name}={value!r}; got {got!r}")
    axial = config["axial_pos_embds"]
    heads, head = config["num_attention_heads"], config["attention_head_size"]
    given: dict[str, Any] = {
        "num_layers": len(config["attn_layers"]),
        "width": config["hidden_size"],
        "hidden": config["feed_forward_size"],
        "feed_forward_chunk": config.get("chunk_size_feed_forward") or None,
        "num_heads": heads,
        "key_width": head,
        "value_width": head,
        "share_embeddings": False,
        "scale_embeddings": False,
        "positions": "axial" if axial else "learned",
        "max_length": config["max_position_embeddings"],
        "axial_shape": tuple(config["axial_pos_shape"]) if axial else (),
        "axial_widths": tuple(config["axial_pos_embds_dim"]) if axial else (),
        "activation": ACTIVATIONS[config["hidden_act"]],
        "norm_epsilon": config["layer_norm_eps"],
        "dropout_rate": config["hidden_dropout_prob"],
        "hidden_dropout_rate": config["hidden_dropout_prob"],
    }
    c = changed_config(TransformerConfig(config["vocab_size"], **given), changed)
    buckets = config["num_buckets"]
    rates = {
        kind: changed.get("attention_dropout_rate", config[f"{kind}_attention_probs_dropout_prob"])
        for kind in ("local", "lsh")
    }
    attentions = {
        "local": c.attention(
            routes.Chunked(
                config["local_attn_chunk_length"], look_back=config["local_num_chunks_before"]
            ),
            dropout_rate=rates["local"],
        ),
        "lsh": c.attention(
            routes.LSH(
                config["num_hashes"],
                num_buckets=tuple(buckets) if isinstance(buckets, list) else buckets,
                chunk_size=config["lsh_attn_chunk_length"],
                options=dataclasses.replace(TRAX, look_back=config["lsh_num_chunks_before"]),
            ),
            dropout_rate=rates["lsh"],
        ),
    }
    return Reformer(c, tuple(attentions[kind] for kind in config["attn_layers"]))


def _positions(c: TransformerConfig) -> dict[str, Place]:
    name = "reformer.embeddings.position_embeddings."
    if c.positions == "learned":
        return {"positions": table(f"{name}embedding.weight", c.max_length, c.width)}
    places = {}
    for i, (length, width) in enumerate(zip(c.axial_shape, c.axial_widths, strict=True)):
        theirs = [1] * len(c.axial_shape)
        theirs[i] = length
        places[f"positions_{i}"] = Place(f"{name}weights.{i}", (*theirs, width), (length, width))
    return places


def _layer(c: TransformerConfig, name: str, shares_qk: bool) -> dict[str, Any]:
    width, heads = (c.width,), (c.num_heads, c.key_width or c.width // c.num_heads)
    projections = ("query_key", "value") if shares_qk else ("query", "key", "value")
    attention = {
        each: {"kernel": matrix(f"{name}attention.self_attention.{each}.weight", width, heads)}
        for each in projections
    }
    out = matrix(f"{name}attention.output.dense.weight", heads, width)
    feed_forward = f"{name}feed_forward."
    return {
        "attention": attention | {"out": {"kernel": out}},
        "attention_norm": norm(f"{name}attention.layer_norm", c.width),
        "feed_forward": {
            "hidden": dense(f"{feed_forward}dense.dense", width, (c.hidden,)),
            "out": dense(f"{feed_forward}output.dense", (c.hidden,), width),
        },
        "feed_forward_norm": norm(f"{name}feed_forward.layer_norm", c.width),
    }
