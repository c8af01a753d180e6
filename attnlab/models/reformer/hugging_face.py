"""Weights of Hugging Face's `ReformerModelWithLMHead`, for a `Reformer` that computes the same."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from attnlab.checks import require, require_choice
from attnlab.models.reformer.model import Reformer
from attnlab.models.transformer.config import TransformerConfig
from attnlab.ops import routes
from attnlab.ops.lsh import TRAX

__all__ = ["from_hugging_face"]

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
}
_BUFFERS = ("mask_value_float16", "mask_value_float32")  # constants that old files hold


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
      **changed: other fields of `TransformerConfig`, such as `dtype=jnp.bfloat16`; not scan_layers.

    Raises:
      ValueError: a configuration with what this model has not, or weights of another one.
    """
    model = _model(config, changed)
    given = {name.removeprefix("reformer."): np.asarray(x) for name, x in weights.items()}
    read: set[str] = set()

    def take(name: str, *shape: int) -> np.ndarray:
        require(
            name in given,
            f"weights must be of a ReformerModelWithLMHead with this configuration; no {name!r}",
        )
        read.add(name)
        x = given[name]
        fits = x.size == math.prod(shape)
        require(fits, f"weights must be of this configuration; got {name!r} {x.shape}")
        return x.T.reshape(shape).astype(model.config.param_dtype)

    c = model.config
    require(
        not c.scan_layers, "weights are laid out a layer each; got scan_layers=True (leave it out)"
    )
    params: dict[str, Any] = {
        "vocabulary": {
            "embedding": _table(take, "embeddings.word_embeddings.weight", c.vocab_size, c.width)
        },
        "inputs": _positions(c, take),
        "decoder": {
            f"layer_{i}": _layer(c, take, f"encoder.layers.{i}.", kind == "lsh")
            for i, kind in enumerate(config["attn_layers"])
        },
        "norm": _norm(take, "encoder.layer_norm", 2 * c.width),
        "softmax": {
            "kernel": take("lm_head.decoder.weight", 2 * c.width, c.vocab_size),
            "bias": take("lm_head.bias", c.vocab_size),
        },
    }
    known = read | {"lm_head.decoder.bias"}  # the softmax's bias by another name
    left = sorted(name for name in set(given) - known if not name.endswith(_BUFFERS))
    require(not left, f"weights must be of this configuration; got {left[:3]} besides")
    return model, {"params": params}


def _model(config: Mapping[str, Any], changed: Mapping[str, Any]) -> Reformer:
    """The model that a configuration describes, without its weights."""
    require_choice("hidden_act", config["hidden_act"], tuple(ACTIVATIONS))
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
    c = TransformerConfig(config["vocab_size"], **{**given, **changed})
    buckets = config["num_buckets"]
    attentions = {
        "local": c.attention(
            routes.Chunked(config["local_attn_chunk_length"], config["local_num_chunks_before"]),
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
    for kind in config["attn_layers"]:
        require_choice("attn_layers", kind, tuple(attentions))
    return Reformer(c, tuple(attentions[kind] for kind in config["attn_layers"]))


def _positions(c: TransformerConfig, take: Any) -> dict[str, np.ndarray]:
    name = "embeddings.position_embeddings."
    if c.positions == "learned":
        return {"positions": _table(take, f"{name}embedding.weight", c.max_length, c.width)}
    sizes = zip(c.axial_shape, c.axial_widths, strict=True)
    return {
        f"positions_{i}": _table(take, f"{name}weights.{i}", *size) for i, size in enumerate(sizes)
    }


def _table(take: Any, name: str, rows: int, width: int) -> np.ndarray:
    """A table that is read by rows; `take` turns a matrix over."""
    return take(name, width, rows).T


def _layer(c: TransformerConfig, take: Any, name: str, shares_qk: bool) -> dict[str, Any]:
    heads, head = c.num_heads, c.key_width or c.width // c.num_heads
    projections = ("query_key", "value") if shares_qk else ("query", "key", "value")
    attention: dict[str, Any] = {
        each: {
            "kernel": take(f"{name}attention.self_attention.{each}.weight", c.width, heads, head)
        }
        for each in projections
    }
    out = take(f"{name}attention.output.dense.weight", heads, head, c.width)
    dense = {
        ours: {
            "kernel": take(f"{name}feed_forward.{theirs}.weight", *shape),
            "bias": take(f"{name}feed_forward.{theirs}.bias", shape[1]),
        }
        for ours, theirs, shape in (
            ("hidden", "dense.dense", (c.width, c.hidden)),
            ("out", "output.dense", (c.hidden, c.width)),
        )
    }
    return {
        "attention": attention | {"out": {"kernel": out}},
        "attention_norm": _norm(take, f"{name}attention.layer_norm", c.width),
        "feed_forward": dense,
        "feed_forward_norm": _norm(take, f"{name}feed_forward.layer_norm", c.width),
    }


def _norm(take: Any, name: str, width: int) -> dict[str, np.ndarray]:
    return {"scale": take(f"{name}.weight", width), "bias": take(f"{name}.bias", width)}
