"""Weights of Hugging Face's `ReformerModelWithLMHead`, for a `Reformer` that computes the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.core.checks import require
from attnlab.models.hugging_face import ACTIVATIONS, Weights, changed_config
from attnlab.models.reformer.model import Reformer
from attnlab.models.transformer.config import TransformerConfig
from attnlab.ops import routes
from attnlab.ops.lsh import TRAX

__all__ = ["from_hugging_face"]

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
      KeyError: a configuration or weights that lack something.
    """
    model = _model(config, changed)
    c = model.config
    require(
        not c.scan_layers, "weights are laid out a layer each; got scan_layers=True (leave it out)"
    )
    from_ = Weights(weights, "reformer.", c.param_dtype)
    bias = next((name for name in _BIASES if name in weights), _BIASES[-1])
    params: dict[str, Any] = {
        "vocabulary": {
            "embedding": from_.table("embeddings.word_embeddings.weight", c.vocab_size, c.width)
        },
        "inputs": _positions(c, from_),
        "decoder": {
            f"layer_{i}": _layer(c, from_, f"encoder.layers.{i}.", kind == "lsh")
            for i, kind in enumerate(config["attn_layers"])
        },
        "norm": from_.norm("encoder.layer_norm", 2 * c.width),
        "softmax": {
            "kernel": from_.take("lm_head.decoder.weight", 2 * c.width, c.vocab_size),
            "bias": from_.take(bias, c.vocab_size),
        },
    }
    from_.require_all_taken(but=_AGAIN)
    return model, {"params": params}


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
    }
    c = changed_config(TransformerConfig(config["vocab_size"], **given), changed)
    buckets = config["num_buckets"]
    attentions = {
        "local": c.attention(
            routes.Chunked(
                config["local_attn_chunk_length"], look_back=config["local_num_chunks_before"]
            ),
            dropout_rate=config["local_attention_probs_dropout_prob"],
        ),
        "lsh": c.attention(
            routes.LSH(
                config["num_hashes"],
                num_buckets=tuple(buckets) if isinstance(buckets, list) else buckets,
                chunk_size=config["lsh_attn_chunk_length"],
                options=dataclasses.replace(TRAX, look_back=config["lsh_num_chunks_before"]),
            ),
            dropout_rate=config["lsh_attention_probs_dropout_prob"],
        ),
    }
    return Reformer(c, tuple(attentions[kind] for kind in config["attn_layers"]))


def _positions(c: TransformerConfig, from_: Weights) -> dict[str, np.ndarray]:
    name = "embeddings.position_embeddings."
    if c.positions == "learned":
        return {"positions": from_.table(f"{name}embedding.weight", c.max_length, c.width)}
    sizes = zip(c.axial_shape, c.axial_widths, strict=True)
    return {
        f"positions_{i}": from_.table(f"{name}weights.{i}", *size) for i, size in enumerate(sizes)
    }


def _layer(c: TransformerConfig, from_: Weights, name: str, shares_qk: bool) -> dict[str, Any]:
    heads, head = c.num_heads, c.key_width or c.width // c.num_heads
    projections = ("query_key", "value") if shares_qk else ("query", "key", "value")
    theirs = f"{name}attention.self_attention."
    attention: dict[str, Any] = {
        each: {"kernel": from_.take(f"{theirs}{each}.weight", c.width, (heads, head))}
        for each in projections
    }
    out = from_.take(f"{name}attention.output.dense.weight", (heads, head), c.width)
    feed_forward = f"{name}feed_forward."
    return {
        "attention": attention | {"out": {"kernel": out}},
        "attention_norm": from_.norm(f"{name}attention.layer_norm", c.width),
        "feed_forward": {
            "hidden": from_.dense(f"{feed_forward}dense.dense", (c.width,), (c.hidden,)),
            "out": from_.dense(f"{feed_forward}output.dense", (c.hidden,), (c.width,)),
        },
        "feed_forward_norm": from_.norm(f"{name}feed_forward.layer_norm", c.width),
    }
