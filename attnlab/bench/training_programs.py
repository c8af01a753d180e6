"""Whole training steps as programs: does this configuration fit?

A step is `attnlab.training`'s: forward, backward and Adam's update of float32 parameters, computed
in the case's dtype, the state given away so that its memory serves the new one. Over several
devices the batch is split and the state is whole on each (`ShardedJit`), or both, or heads, or the
sequence are split (`ShardedState`), as `case.shard` says. The models are
Transformers of `num_layers` layers (of each stack), model width num_heads · head_dim and
feed-forward width four times that; the mechanism is that of their self-attention. A language model
may be `reversible`, a Reformer with exact attention, `chunked_reversible`, the same with
feed-forward networks for 1024 positions at a time, or `reformer`, that with LSH. No model has
dropout: XLA draws its masks again in the backward pass, so they take no memory worth naming (2.13
GiB with and without, 6 layers of width 512 at 8 × 1024 tokens for v5e), but programs with them
take much longer to compile.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from attnlab.bench import sharding
from attnlab.bench.case import Case
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import Transformer, TransformerEncoder, TransformerLM
from attnlab.models.transformer.config import TransformerConfig
from attnlab.modules.scores import AdditiveScore
from attnlab.ops import routes
from attnlab.training.objective import Batch, Objective, TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import ShardedJit, ShardedState
from attnlab.training.step import TrainState, make_train_step

# The reversible models; Kitaev et al. 2020, Table 3.
REVERSIBLE = ("reversible", "chunked_reversible", "reformer")
FEED_FORWARD_CHUNK = 1024  # positions
_PROBE = 8  # tokens to initialize with: no parameter's shape depends on the input's length


class MaskedLM(nn.Module):
    """Logits [B, T, V] of every position of an encoder: the shape of BERT's pre-training.

    BERT-base's kind of layer (Devlin et al. 2019, §3: learned positions, GELU, LayerNorm after each
    residual) under a dense layer, a LayerNorm and a matrix to the vocabulary, without segments, the
    next-sentence loss, or the choice of 15 % of the positions. It is here for its memory alone.

    Attributes:
      config: configuration of the encoder.
      attention: self-attention module of the encoder.
    """

    config: TransformerConfig
    attention: nn.Module

    @nn.compact
    def __call__(
        self, tokens: jax.Array, target: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """Logits of tokens [B, T], some of them masked; `target` [B, T] is for the loss alone."""
        del target
        c = self.config
        types: dict[str, Any] = {"dtype": c.dtype, "param_dtype": c.param_dtype}
        x = TransformerEncoder(c, self.attention)(tokens, deterministic=deterministic)
        x = nn.LayerNorm(**types)(nn.gelu(nn.Dense(c.width, **types)(x)))
        return nn.Dense(c.vocab_size, **types)(x)


def lower(case: Case, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    """Traces and lowers the training step of the case; allocates nothing."""
    axis = sharding.OF_TRAININGS[case.shard or "batch"]
    parallel = ShardedJit(devices) if axis is None else ShardedState(devices, {axis: len(devices)})
    return lower_step(*_training(case), parallel)


def traceable(case: Case) -> tuple[Any, ...]:
    """The training step of the case, all of it on one device, and the shapes of its arguments."""
    model, objective, optimizer, batch = _training(case)
    state = jax.eval_shape(lambda: _state(model, objective, optimizer, batch))
    return make_train_step(model, objective, _chain(optimizer)), state, batch


def initial_state(case: Case) -> TrainState:
    """The state that the first step of the case is given."""
    return _state(*_training(case))


def lower_step(
    model: nn.Module,
    objective: Objective,
    optimizer: OptimizerSettings,
    batch: Batch,
    parallel: ShardedJit,
    *,
    streams: Sequence[str] = ("dropout",),
) -> jax.stages.Lowered:
    """Traces and lowers a training step of any model; allocates nothing.

    Args:
      model: model that is trained.
      objective: objective to minimize.
      optimizer: optimizer of the parameters.
      batch: shapes and dtypes of a batch, all of them [rows, length].
      parallel: devices, and what of the step is split over them.
      streams: names of the random numbers that the model draws, as `make_train_step` takes them.
    """
    state = jax.eval_shape(lambda: _state(model, objective, optimizer, batch))
    step = make_train_step(model, objective, _chain(optimizer), streams=streams)
    shardings = parallel.shardings(state)
    return parallel.compile(step, donate=True, out=(shardings, parallel.whole)).lower(
        _placed(state, shardings),
        _placed(batch, jax.tree.map(lambda _: parallel.rows, batch)),
    )


def _training(case: Case) -> tuple[nn.Module, Objective, OptimizerSettings, Batch]:
    batch = _batch(case, case.batch, case.length)
    return build(case), TokenCrossEntropy(), OptimizerSettings(), batch


def _state(
    model: nn.Module, objective: Objective, optimizer: OptimizerSettings, batch: Batch
) -> TrainState:
    probe = {name: jnp.ones((1, _PROBE), x.dtype) for name, x in batch.items()}
    return TrainState.create(model, _chain(optimizer), objective.inputs(probe), 0)


def _chain(optimizer: OptimizerSettings) -> optax.GradientTransformation:
    return optimizer.build(total_steps=2 + optimizer.warmup_steps)


def build(case: Case) -> nn.Module:
    """The model of a case."""
    assert case.vocab_size is not None and case.num_layers is not None
    bert = case.program == "bert"
    config = TransformerConfig(
        case.vocab_size,
        num_layers=case.num_layers,
        width=case.width,
        hidden=4 * case.width,
        num_heads=case.num_heads,
        positions="learned" if bert else "sinusoid",
        max_length=case.length,
        activation=nn.gelu if bert else nn.relu,
        dropout_rate=0.0,
        feed_forward_chunk=FEED_FORWARD_CHUNK if case.mechanism in REVERSIBLE[1:] else None,
        scan_layers=True,  # else compiling takes as many times as long as there are layers
        dtype=jnp.dtype(case.dtype),
    )
    attention = _attention(case, config)
    match case.program:
        case "translate":
            cross = config.cross_attention(route=routes.AllPairs(case.implementation))
            return Transformer(config, attention, cross)
        case "language_model":
            model = Reformer if case.mechanism in REVERSIBLE else TransformerLM
            return model(config, attention)
        case "bert":
            return MaskedLM(config, attention)
    raise ValueError(f"no program {case.program!r}")


def _attention(case: Case, config: TransformerConfig) -> nn.Module:
    exact = routes.AllPairs(case.implementation)
    match case.mechanism:
        case "multi_head" | "reversible" | "chunked_reversible":
            return config.attention(exact)
        case "additive":
            return config.attention(exact, score=AdditiveScore())
        case "window":
            right = 0 if case.program == "language_model" else case.window
            return config.attention(routes.Window(case.window, right, case.implementation))
        case "lsh" | "reformer":
            route = routes.LSH(
                case.num_hashes, chunk_size=case.chunk_size, implementation=case.implementation
            )
            return config.attention(route)
    raise ValueError(f"no mechanism {case.mechanism!r} in {case.program}")


def _batch(case: Case, rows: int, length: int) -> Batch:
    names = {"translate": ("source", "target"), "bert": ("tokens", "target")}
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return dict.fromkeys(names.get(case.program, ("tokens",)), tokens)


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, shardings
    )
