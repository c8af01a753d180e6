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
from flax.traverse_util import flatten_dict

from attnlab import positions
from attnlab.bench import inputs
from attnlab.bench.case import SEARCHES, Case
from attnlab.core.tokens import BOS, EOS, PAD
from attnlab.mechanisms.attentions import FEED_FORWARD_CHUNK, kind_of
from attnlab.ops.lsh import default_num_buckets, factorize
from attnlab.runs import provenance
from attnlab.runs.errors import Invalid

LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Call:
    """A program that no JAX compiler sees.

    Attributes:
      run: () -> the program's result, once it is computed.
      values: function of what `run` returned that gives the output [1, L, N, H], or the gradients
        of the inputs; of a model the first losses, or log p of the translations.
      argument_bytes: size of the inputs, of a training step of its state.
    """

    run: Callable[[], Any]
    values: Callable[[Any], list[np.ndarray]]
    argument_bytes: int


class Losses:
    """The losses of the first steps of a training, by which two of one model are compared."""

    _NUMBER = 5

    def __init__(self) -> None:
        self._first: list[Any] = []

    def add(self, loss: Any) -> None:
        """Keeps the loss of a step if it is one of the first."""
        if len(self._first) < self._NUMBER:
            self._first.append(loss)

    def after(self, step: Callable[[], Any]) -> list[np.ndarray]:
        """The first losses, after as many more steps as they need."""
        while len(self._first) < self._NUMBER:
            step()
        return [np.array(self._first, float)]


def require_packages(kinds: Iterable[str]) -> None:
    """Refuses mechanisms whose package is not installed.

    Raises:
      Invalid: a package is missing; the message says which, and how to install it.
    """
    needed = dict.fromkeys(kind_of(kind).package for kind in kinds)
    missing = [x for x in needed if x and not importlib.util.find_spec(x.replace("-", "_"))]
    if missing:
        raise Invalid(
            f"not installed: {', '.join(missing)}; they are in the extra compat (tokamax in the "
            "extra tokamax, Python ≥ 3.12), which `launch/local --extra=compat …` installs (or "
            "name other mechanisms)"
        )


def jax_function(case: Case) -> Callable[..., jax.Array]:
    """The function (parameters, q, k, v) of a peer that is written in JAX; arrays [B, T, N, H]."""
    match case.attention.kind:
        case "flax":
            return _flax(case)
        case "jax_nn":
            return lambda _, q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=case.causal)
        case "tokamax_chunked":
            return _tokamax(case)
        case "keras_additive" | "keras_dot":
            return _keras(case)
    raise ValueError(f"{case.mechanism} is not written in JAX")


def torch_call(case: Case, text: inputs.Text) -> Call:
    """The program of a peer that is written in torch."""
    import torch

    torch.set_num_threads(provenance.cores())  # as many as XLA has
    match case.program:
        case "translate":
            return _translation(case, text)
        case "language_model":
            return _language_model(case, text)
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


def _tokamax(case: Case) -> Callable[..., jax.Array]:
    """The one other attention in JAX that is linear in memory on a CPU, with its gradient."""
    import tokamax

    def apply(_: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return tokamax.dot_product_attention(
            q, k, v, is_causal=case.causal, implementation="xla_chunked"
        )

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
    case: Case, text: inputs.Text, function: Callable[..., Any], names: tuple[str, ...], layout: str
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


def _language_model(case: Case, text: inputs.Text) -> Call:
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
        num_buckets=list(factorize(number)),
        lsh_attn_chunk_length=case.chunk_size,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
    )
    model = ReformerModelWithLMHead(config).train()
    optimizer = _adam(model)
    ids = torch.from_numpy(_ids(case, text)["tokens"])

    def run() -> Any:
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    # It begins with numbers of its own.
    return Call(run, lambda loss: [], _size(model) + _size_of_moments(model))


def _translation(case: Case, text: inputs.Text) -> Call:
    """A step of `MarianMTModel` in training mode, or its `generate`; its parameters are ours."""
    import torch

    ours = dataclasses.replace(case, mechanism=kind_of(case.attention.kind).computes)
    model, ids = _marian(ours), _ids(case, text)
    source = torch.from_numpy(ids["source"])
    target = torch.from_numpy(ids["target"])
    if case.passes in SEARCHES:
        model.eval()
        limits = {
            "max_new_tokens": case.length,
            "num_beams": case.beam_size or 1,
            "do_sample": False,
        }

        def search(**more: Any) -> Any:
            with torch.inference_mode():
                return model.generate(source, length_penalty=0.0, **limits, **more)

        def log_p(_: Any) -> list[np.ndarray]:
            found = search(return_dict_in_generate=True, output_scores=True)
            beams = getattr(found, "beam_indices", None)
            steps = model.compute_transition_scores(
                found.sequences, found.scores, beams, normalize_logits=beams is None
            )
            return [steps.sum(-1).numpy()]

        return Call(search, log_p, _size(model))
    optimizer = _adam(model)
    losses = Losses()

    def run() -> Any:
        loss = model(source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.add(float(loss.detach()))

    return Call(run, lambda _: losses.after(run), _size(model) + _size_of_moments(model))


def _marian(ours: Case) -> Any:
    """Hugging Face's `MarianMTModel` that computes what our Transformer does, with its parameters.

    The biases of its attention, which ours has not, are 0 and not trained.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    from attnlab.bench import model_programs

    config = model_programs.build(ours).config
    num_positions, sizes = ours.length + 1, {}
    for stack in _STACKS:
        sizes[f"{stack}_layers"] = config.num_layers
        sizes[f"{stack}_attention_heads"] = config.num_heads
        sizes[f"{stack}_ffn_dim"] = config.hidden
    marian = MarianConfig(
        vocab_size=config.vocab_size, d_model=config.width, max_position_embeddings=num_positions,
        activation_function="relu", dropout=0.0, scale_embedding=True,
        pad_token_id=PAD, eos_token_id=EOS, forced_eos_token_id=None, decoder_start_token_id=BOS,
        **sizes,
    )  # fmt: skip
    model = MarianMTModel(marian).train()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config.norm_epsilon
    for name, x in model.named_parameters():
        if "attn" in name and name.endswith("proj.bias"):
            x.requires_grad_(False).zero_()
    made = jax.jit(lambda: model_programs.initial_variables(ours))()["params"]
    state = model.state_dict()
    taken = {"model.shared.weight": made["vocabulary"]["embedding"]}
    for stack in _STACKS:
        places = positions.sinusoids(jnp.arange(num_positions), config.width)
        taken[f"model.{stack}.embed_positions.weight"] = places
        for path, x in flatten_dict(made[stack], sep="/").items():
            layer, rest = path.removeprefix("layer_").split("/", 1)
            module, _, kind = rest.rpartition("/")
            kind = "bias" if kind == "bias" else "weight"
            name = f"model.{stack}.layers.{layer}.{_MARIAN[module]}.{kind}"
            # [in, out] with the axes of heads side by side, turned over
            taken[name] = x.reshape(state[name].shape[::-1]).T
    for name, x in taken.items():
        state[name].copy_(torch.from_numpy(np.array(x)))
    return model


def _ids(case: Case, text: inputs.Text) -> dict[str, np.ndarray]:
    from attnlab.bench import model_programs

    return {
        name: np.asarray(x, np.int64) for name, x in model_programs.batch_of(case, text).items()
    }


def _size(model: Any) -> int:
    return sum(x.numel() * x.element_size() for x in model.parameters())


def _adam(model: Any) -> Any:
    """Adam with its moments, which it would make in the first call, whose memory may be watched."""
    import torch

    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.Adam(trained, LEARNING_RATE)
    for x in trained:
        x.grad = torch.zeros_like(x)
    optimizer.step()  # which changes nothing
    for moments in optimizer.state.values():
        moments["step"].zero_()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _size_of_moments(model: Any) -> int:
    return 2 * sum(x.numel() * x.element_size() for x in model.parameters() if x.requires_grad)


_STACKS = ("encoder", "decoder")
# Modules of a layer: ours, and theirs.
_MARIAN = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
    "feed_forward/hidden": "fc1",
    "feed_forward/out": "fc2",
} | {
    f"{ours}/{of_ours}": f"{theirs}.{of_theirs}_proj"
    for ours, theirs in (("attention", "self_attn"), ("cross_attention", "encoder_attn"))
    for of_ours, of_theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out"))
}
