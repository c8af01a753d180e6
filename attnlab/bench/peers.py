"""Other people's attention as mechanisms: bare functions of the same arrays.

Those that are written in torch run on the CPU, those in JAX on any device.

Each gets arrays in the layout that it documents, contiguous, and its own fastest way of being
called: jitted for JAX, without gradients for torch's forward pass. Each LSH implementation hashes
in its own way: attnlab and Hugging Face with 2·L/C buckets in two factors and rotations for each
head, reformer-pytorch with L/C buckets in one factor and one rotation for all heads; hashing is
part of what is timed. Packages are imported where a mechanism is made.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.attentions import FEED_FORWARD_CHUNK, kind_of
from attnlab.bench import inputs
from attnlab.bench.case import ATTENTION, Case
from attnlab.ops.lsh import default_num_buckets, factorize
from attnlab.runs import provenance
from attnlab.runs.errors import Invalid
from attnlab.tokens import NUM_SPECIAL

LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Call:
    """A program that no JAX compiler sees.

    Attributes:
      run: () -> the program's result, once it is computed.
      values: function of what `run` returned that gives the output [1, L, N, H], or the gradients
        of the inputs.
      argument_bytes: size of the inputs.
    """

    run: Callable[[], Any]
    values: Callable[[Any], list[np.ndarray]]
    argument_bytes: int


def require_packages(kinds: Iterable[str]) -> None:
    """Refuses mechanisms whose package is not installed.

    Raises:
      Invalid: a package is missing; the message says which, and how to install it.
    """
    needed = dict.fromkeys(kind_of(kind).package for kind in kinds)
    missing = [x for x in needed if x and not importlib.util.find_spec(x.replace("-", "_"))]
    if missing:
        raise Invalid(
            f"not installed: {', '.join(missing)}; they are in the extra compat, which "
            "`launch/local --extra=compat …` installs (or name other mechanisms)"
        )


def jax_function(case: Case) -> Callable[..., jax.Array]:
    """The function (parameters, q, k, v) of a peer that is written in JAX; arrays [B, T, N, H]."""
    match case.attention.kind:
        case "flax":
            return _flax(case)
        case "jax_nn":
            return lambda _, q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=case.causal)
        case "keras_additive" | "keras_dot":
            return _keras(case)
    raise ValueError(f"{case.mechanism} is not written in JAX")


def torch_call(case: Case, text: inputs.Text) -> Call:
    """The program of a peer that is written in torch."""
    import torch

    torch.set_num_threads(provenance.cores())  # as many as XLA has
    if case.program != ATTENTION:
        return _training(case, text)
    match case.attention.kind:
        case "torch_sdpa":
            return _function(case, text, _sdpa(case), inputs.STREAMS, "bnlh")
        case "hf_lsh":
            return _function(case, text, hugging_face(case), ("query", "value"), "bl(nh)")
        case "reformer_pytorch":
            return _function(case, text, reformer_pytorch(case), ("query", "value"), "(bn)lh")
    raise ValueError(f"{case.mechanism} is not written in torch")


def _flax(case: Case) -> Callable[..., jax.Array]:
    """What `flax.linen.MultiHeadDotProductAttention` does between its projections."""
    import flax.linen as nn

    def apply(_: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(jnp.ones(q.shape[:2]), dtype=bool) if case.causal else None
        return nn.dot_product_attention(q, k, v, mask=mask, deterministic=True)

    return apply


def _keras(case: Case) -> Callable[..., jax.Array]:
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is first imported
    import keras

    if keras.backend.backend() != "jax":
        raise RuntimeError("keras was imported with another backend; set KERAS_BACKEND=jax")
    if case.num_heads > 1:
        raise ValueError("Keras' attention layers have one head; give --num_heads=1")
    additive = case.attention.kind == "keras_additive"
    make = keras.layers.AdditiveAttention if additive else keras.layers.Attention
    layer = make(use_scale=additive)
    layer.build([(1, case.length or 8, case.head_dim)] * 3)

    def apply(parameters: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        rows = [x[:, :, 0] for x in (q, v, k)]  # one head, and values before keys
        weights = [parameters["params"]["kernel"][0]] if additive else []
        context, _ = layer.stateless_call(weights, [], rows, use_causal_mask=case.causal)
        return context[:, :, None]

    return apply


def _sdpa(case: Case) -> Callable[..., Any]:
    from torch.nn import functional

    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal)


def _function(
    case: Case,
    text: inputs.Text,
    function: Callable[..., Any],
    names: tuple[str, ...],
    layout: str,
) -> Call:
    """`layout`: the order of the axes of [b, l, n, h] that the peer wants, merged ones in ()."""
    import torch

    shape = (case.batch, case.length, case.num_heads, case.head_dim)
    order = ["blnh".index(axis) for axis in layout if axis.isalpha()]
    merged = {
        "bnlh": (case.batch, case.num_heads, case.length, case.head_dim),
        "bl(nh)": (case.batch, case.length, case.width),
        "(bn)lh": (case.batch * case.num_heads, case.length, case.head_dim),
    }[layout]

    def inward(x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x.reshape(shape).transpose(order).reshape(merged))
        return torch.from_numpy(x).to(getattr(torch, case.dtype))

    def outward(x: Any) -> np.ndarray:
        x = x.detach() if case.dtype == "float64" else x.detach().float()
        axes = tuple(shape[axis] for axis in order)
        return x.numpy().reshape(axes).transpose(np.argsort(order))

    streams = inputs.streams(text, batch=case.batch, length=case.length, width=case.width)
    backward = case.passes == "forward_backward"
    tensors = [inward(streams[name]).requires_grad_(backward) for name in names]
    cotangent = inward(np.random.default_rng(1).standard_normal(shape, np.float32))  # as `programs`

    def run() -> Any:
        with torch.set_grad_enabled(backward):
            out = function(*tensors)
            return torch.autograd.grad(out, tensors, cotangent) if backward else [out]

    sized = [*tensors, *[cotangent] * backward]
    size = sum(x.numel() * x.element_size() for x in sized)
    return Call(run, lambda returned: [outward(x) for x in returned], size)


def hugging_face(case: Case, buckets: np.ndarray | None = None) -> Callable[[Any, Any], Any]:
    """`LSHSelfAttention` as a function of qk, v [B, L, N·H], which replace its projections.

    Args:
      case: case of the mechanism.
      buckets: buckets [1, R, L, N] in place of its hashing, to compare values.
    """
    import torch
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    class Given(torch.nn.Module):
        """A projection whose result is given."""

        def forward(self, _: Any) -> Any:
            return self.result

    num_buckets = 2 * (case.length // case.chunk_size)
    config = ReformerConfig(
        attn_layers=["lsh"],
        num_attention_heads=case.num_heads,
        attention_head_size=case.head_dim,
        hidden_size=case.width,
        lsh_attn_chunk_length=case.chunk_size,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=case.attention.number or 1,
        num_buckets=list(factorize(num_buckets)),
        is_decoder=case.causal,
        max_position_embeddings=case.length,
        hash_seed=0,
    )
    module = LSHSelfAttention(config)
    module.query_key, module.value = Given(), Given()
    offset = _with_offsets(buckets, num_buckets)  # [1, N, R·L]

    def attend(qk: Any, v: Any) -> Any:
        module.query_key.result, module.value.result = qk, v
        return module(qk, buckets=offset).hidden_states

    return attend


def reformer_pytorch(case: Case, buckets: np.ndarray | None = None) -> Callable[[Any, Any], Any]:
    """`LSHAttention` as a function of qk, v [B·N, L, H]; arguments as `hugging_face`."""
    from reformer_pytorch import LSHAttention

    rounds = case.attention.number or 1
    module = LSHAttention(bucket_size=case.chunk_size, n_hashes=rounds, causal=case.causal)
    offset = _with_offsets(buckets, case.length // case.chunk_size)
    if offset is not None:
        module.hash_vectors = lambda *_, **__: offset[0]
    return lambda qk, v: module(qk, v)[0]


def _with_offsets(buckets: np.ndarray | None, num_buckets: int) -> Any:
    """[1, R, L, N] to a tensor [1, N, R·L] in which no two rounds share a number."""
    if buckets is None:
        return None
    import torch

    rounds, length, heads = buckets.shape[1:]
    offsets = np.arange(rounds)[:, None, None] * num_buckets
    flat = np.moveaxis(buckets[0].astype(np.int64) + offsets, 2, 0)
    return torch.from_numpy(flat.reshape(1, heads, rounds * length))


def tokens(case: Case, text: inputs.Text) -> np.ndarray:
    """The ids of the first bytes of the text, [B, L]."""
    return text.windows(case.batch, case.length).astype(np.int32) + NUM_SPECIAL


def _training(case: Case, text: inputs.Text) -> Call:
    """A step of `ReformerModelWithLMHead` in training mode: forward, backward, Adam's update.

    All layers are LSH. Positions are axial, ours sinusoids: a difference of some thousand
    parameters.
    """
    import torch
    from transformers import ReformerConfig, ReformerModelWithLMHead

    number = default_num_buckets(case.length, case.chunk_size)
    torch.manual_seed(0)
    config = ReformerConfig(
        attn_layers=["lsh"] * (case.num_layers or 0),
        is_decoder=True,
        num_attention_heads=case.num_heads,
        attention_head_size=case.head_dim,
        hidden_size=case.width,
        feed_forward_size=4 * case.width,
        chunk_size_feed_forward=min(FEED_FORWARD_CHUNK, case.length),
        vocab_size=case.vocab_size,
        max_position_embeddings=case.length,
        axial_pos_shape=[64, case.length // 64],
        axial_pos_embds_dim=[case.width // 4, case.width - case.width // 4],
        num_hashes=case.attention.number or 1,
        num_buckets=list(factorize(number) if isinstance(number, int) else number),
        lsh_attn_chunk_length=case.chunk_size,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
    )
    model = ReformerModelWithLMHead(config).train()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    ids = torch.from_numpy(tokens(case, text).astype(np.int64))

    def run() -> Any:
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    size = sum(x.numel() * x.element_size() for x in model.parameters())
    return Call(run, lambda loss: [], size)  # two models that begin with numbers of their own
