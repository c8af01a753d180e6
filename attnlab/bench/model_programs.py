"""Whole models as programs: a training step, which may be too large, and a search.

A step is `attnlab.training`'s: forward, backward and Adam's update of float32 parameters, computed
in the case's dtype, the state given away so that its memory serves the new one. Over several
devices the batch is split and the state is whole on each (`ShardedJit`), or both, or heads, or the
sequence are split (`ShardedState`), as `case.shard` says. The models are
Transformers of `num_layers` layers (of each stack), model width num_heads · head_dim and
feed-forward width four times that; the mechanism is that of their self-attention, or a pattern.
BERT's step is that of its pre-training, with 15 % of the tokens masked. A language model may be
`reversible-…`, a Reformer with these attentions, and `chunked-…`, with feed-forward networks for
1024 positions at a time (`attentions.Model`). No model has dropout: XLA draws its masks again in
the backward pass, so they take no memory worth naming (2.13 GiB with and without, 6 layers of width
512 at 8 × 1024 tokens for v5e), but programs with them take much longer to compile.

A search translates as many tokens as the sources have. The weights are random, and the rows of
special ids in the vocabulary 0, so that none is likely and no translation ends before the limit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from attnlab.bench import inputs, memory, sharding
from attnlab.bench.case import SEARCHES, Case
from attnlab.core.tokens import NUM_SPECIAL
from attnlab.mechanisms.attentions import FEED_FORWARD_CHUNK, Surroundings, pattern
from attnlab.models.bert import BertPretraining
from attnlab.models.reformer import Reformer
from attnlab.models.seq2seq import Decoder
from attnlab.models.transformer import Transformer, TransformerLM
from attnlab.models.transformer.config import TransformerConfig
from attnlab.ops import routes
from attnlab.training.decode import Hypotheses, beam_search, greedy
from attnlab.training.loop import Task
from attnlab.training.masked import MaskedCrossEntropy
from attnlab.training.objective import Batch, Objective, TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import ShardedJit, ShardedState
from attnlab.training.step import TrainState, make_train_step

_PROBE = 8  # tokens to initialize with: no parameter's shape depends on the input's length


def lower(case: Case, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    """Traces and lowers the training step or the search of the case; allocates nothing."""
    if case.passes in SEARCHES:
        variables = jax.eval_shape(lambda: initial_variables(case))
        return jax.jit(search(case)).lower(variables, _batch(case)["source"])
    parallel = ShardedJit(devices)
    if case.shard not in (None, "batch"):
        parallel = ShardedState(devices, sharding.mesh_of(case.shard, len(devices)))
    return lower_step(*_training(case), parallel)


def traceable(case: Case) -> tuple[Any, ...]:
    """The training step of the case, all of it on one device, and the shapes of its arguments."""
    return traceable_step(*_training(case))


def initial_state(case: Case) -> TrainState:
    """The state that the first step of the case is given."""
    return _state(*_training(case))


def search(case: Case) -> Callable[[Any, jax.Array], Hypotheses]:
    """(variables, source [B, L]) -> translations of L tokens, with log p as their scores."""
    model = build(case)
    assert isinstance(model, Decoder)
    limits: Any = {"max_length": case.length, "extra_length": None}
    if case.beam_size is None:
        return lambda variables, source: greedy(model, variables, source, **limits)
    limits |= {"beam_size": case.beam_size, "length_penalty": 0.0}
    return lambda variables, source: beam_search(model, variables, source, **limits)


def initial_variables(case: Case) -> dict[str, Any]:
    """The variables that the search, or the first step, of the case is given."""
    parameters = initial_state(case).params
    if case.passes not in SEARCHES:
        return {"params": parameters}
    vocabulary = parameters["vocabulary"]
    rows = vocabulary["embedding"].at[:NUM_SPECIAL].set(0)
    return {"params": {**parameters, "vocabulary": {**vocabulary, "embedding": rows}}}


def batch_of(case: Case, text: inputs.Text) -> Batch:
    """A batch of the case, its ids the bytes of a text: source and target are different windows."""
    shapes = _batch(case)
    windows = text.windows(len(shapes) * case.batch, case.length).astype("int32") + NUM_SPECIAL
    return dict(zip(shapes, jnp.split(jnp.asarray(windows), len(shapes)), strict=True))


def lower_step(
    model: nn.Module,
    objective: Objective,
    optimizer: OptimizerSettings,
    batch: Batch,
    parallel: ShardedJit,
    *,
    streams: Sequence[str] = ("dropout",),
    accumulate: int = 1,
) -> jax.stages.Lowered:
    """Traces and lowers a training step of any model; allocates nothing."""
    step, state, batch = traceable_step(
        model, objective, optimizer, batch, streams=streams, accumulate=accumulate
    )
    shardings = parallel.shardings(state)
    return parallel.compile(step, donate=True, out=(shardings, parallel.whole)).lower(
        _place(state, shardings), _place(batch, jax.tree.map(lambda _: parallel.rows, batch))
    )


def traceable_step(
    model: nn.Module,
    objective: Objective,
    optimizer: OptimizerSettings,
    batch: Batch,
    *,
    streams: Sequence[str] = ("dropout",),
    accumulate: int = 1,
) -> tuple[Any, ...]:
    """A training step of any model, all of it on one device, and the shapes of its arguments."""
    state = jax.eval_shape(lambda: _state(model, objective, optimizer, batch))
    options: dict[str, Any] = {"streams": streams, "accumulate": accumulate}
    return make_train_step(model, objective, _chain(optimizer), **options), state, batch


def memory_of_step(
    task: Task[Any],
    optimizer: OptimizerSettings,
    batch: Batch,
    parallel: ShardedJit,
    accumulate: int = 1,
) -> int:
    """Bytes that a training step needs on each device, by the compiler's count."""
    options: dict[str, Any] = {"streams": task.streams, "accumulate": accumulate}
    lowered = lower_step(task.model, task.objective, optimizer, batch, parallel, **options)
    device = parallel.mesh.devices.flat[0]
    return memory.analyze(lowered, lowered.compile(), device.platform).total


def _training(case: Case) -> tuple[nn.Module, Objective, OptimizerSettings, Batch]:
    batch = _batch(case)
    objective = MaskedCrossEntropy() if case.program == "bert" else TokenCrossEntropy()
    return build(case), objective, OptimizerSettings(), batch


def _state(
    model: nn.Module, objective: Objective, optimizer: OptimizerSettings, batch: Batch
) -> TrainState:
    probe = {
        name: jnp.ones((1, *(min(size, _PROBE) for size in x.shape[1:])), x.dtype)
        for name, x in batch.items()
    }
    return TrainState.create(model, _chain(optimizer), objective.inputs(probe), 0)


def _chain(optimizer: OptimizerSettings) -> optax.GradientTransformation:
    return optimizer.build(total_steps=2 + optimizer.warmup_steps)


def build(case: Case) -> nn.Module:
    """The model of a case."""
    assert case.vocab_size is not None and case.num_layers is not None
    make = TransformerConfig.bert if case.program == "bert" else TransformerConfig
    config = make(
        case.vocab_size,
        num_layers=case.num_layers,
        width=case.width,
        hidden=4 * case.width,
        num_heads=case.num_heads,
        max_length=case.length,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        feed_forward_chunk=FEED_FORWARD_CHUNK if case.model.chunked else None,
        # Compiles in the time of one layer; here a search is a fifth faster without.
        scan_layers=case.target is not None,
        dtype=jnp.dtype(case.dtype),
    )
    lsh = routes.LSH(chunk_size=case.chunk_size)
    around = Surroundings(case.program == "language_model", case.length, lsh)
    attention = pattern(case.model.pattern, config, around, implementation=case.implementation)
    match case.program:
        case "translate":
            cross = config.cross_attention(route=routes.AllPairs(case.implementation))
            return Transformer(config, attention, cross)
        case "language_model":
            model = Reformer if case.model.reversible else TransformerLM
            return model(config, attention)
        case "bert":
            return BertPretraining(config, attention)
    raise ValueError(f"no program {case.program!r}")


def _batch(case: Case) -> Batch:
    rows, length = case.batch, case.length
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    match case.program:
        case "translate":
            return {"source": tokens, "target": tokens}
        case "bert":
            masked = jax.ShapeDtypeStruct((rows, max(1, round(0.15 * length))), jnp.int32)
            pair = jax.ShapeDtypeStruct((rows,), jnp.int32)
            return {
                "tokens": tokens, "types": tokens, "masked": masked, "target": masked, "next": pair
            }  # fmt: skip
    return {"tokens": tokens}


def _place(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, shardings
    )
