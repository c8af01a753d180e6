import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.training.objective import TokenCrossEntropy, num_sentences, token_sums
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from attnlab.training.step import TrainState, divisors, make_train_step
from tests.daily import daily
from tests.training import tiny
from tests.trees import assert_close


def created(model, optimizer, batch):
    """A state to start with, made by one program."""
    return jax.jit(lambda: TrainState.create(model, optimizer, batch, seed=0))()


def test_a_step_draws_a_dropout_of_its_own():
    model, optimizer = tiny.Tiny(dropout_rate=0.5), OptimizerSettings(learning_rate=0.0).build(3)
    batch = next(iter(tiny.batches()))
    step, with_more = (
        jax.jit(make_train_step(model, TokenCrossEntropy(), optimizer, streams=streams))
        for streams in (("dropout",), ("dropout", "more"))
    )
    state = created(model, optimizer, batch)
    after, first = step(state, batch)
    _, second = step(after, batch)
    _, again = with_more(state, batch)
    assert first.sums["loss"] == again.sums["loss"] != second.sums["loss"]
    assert int(after.step) == 1


class Draws(nn.Module):
    """Returns a number from each stream."""

    @nn.compact
    def __call__(self, source, target, *, deterministic=True):
        self.param("unused", nn.initializers.zeros, ())
        return {name: jax.random.normal(self.make_rng(name)) for name in ("dropout", "hash")}


class Drawn(TokenCrossEntropy):
    """Adds up what `Draws` returns."""

    def sums(self, outputs, batch):
        x = outputs["dropout"]
        return {"loss": x, "square": x**2, "hash": outputs["hash"]}


def test_parts_of_a_batch_and_streams_draw_apart():
    model, optimizer = Draws(), OptimizerSettings().build(3)
    batch = next(iter(tiny.batches()))
    state = created(model, optimizer, batch)
    step = make_train_step(model, Drawn(), optimizer, accumulate=2, streams=("dropout", "hash"))
    sums = jax.device_get(jax.jit(step)(state, batch)[1].sums)
    assert 2 * sums["square"] - sums["loss"] ** 2 > 1e-5  # (x₁ − x₂)²
    assert abs(sums["loss"] - sums["hash"]) > 1e-2


class Centered(tiny.Tiny):
    """Keeps half of the mean of what it read in training before, and half of what it reads."""

    dtype: Any = jnp.float32

    def setup(self):
        super().setup()
        self.mean = self.variable("statistics", "mean", jnp.zeros, (), self.dtype)

    def encode(self, source, *, deterministic=True):
        mean = self.mean
        if not deterministic:
            assert self.has_rng("hash")
            moved = (mean.value + source.mean(dtype=jnp.float32)) / 2
            mean.value = moved.astype(self.dtype)
        return super().encode(source, deterministic=deterministic)


@pytest.mark.parametrize(
    ("kind", "devices", "accumulate"),
    daily([("jit", 1, 1), ("jit", 2, 2), ("pmap", 2, 1), ("pmap", 2, 2)], ("pmap", 2, 2)),
)
def test_collections_move_from_part_to_part_and_are_means_over_devices(kind, devices, accumulate):
    parallel = parallel_over(kind, jax.devices()[:devices])
    model, optimizer = Centered(), OptimizerSettings().build(3)
    batch = next(iter(tiny.batches()))
    state = created(model, optimizer, batch)
    step = make_train_step(
        model,
        TokenCrossEntropy(),
        optimizer,
        accumulate=accumulate,
        streams=("dropout", "hash"),
        axis_name=parallel.axis_name,
    )
    after, _ = parallel.compile(step)(parallel.place(state), parallel.split(batch))
    expected = 0.0
    for part in range(accumulate):
        expected = (expected + batch["source"][part::accumulate].mean()) / 2
    found = parallel.gather(after).collections["statistics"]["mean"]
    assert state.collections["statistics"]["mean"] == 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    copies = [x.data for x in after.collections["statistics"]["mean"].addressable_shards]
    assert len(copies) == devices and len({np.asarray(x).tobytes() for x in copies}) == 1


def test_integers_have_no_mean_over_devices():
    model, optimizer = Centered(dtype=jnp.int32), OptimizerSettings().build(3)
    batch = next(iter(tiny.batches()))
    parallel = parallel_over("pmap", jax.devices()[:2])
    state = parallel.place(created(model, optimizer, batch))
    step = parallel.compile(
        make_train_step(
            model,
            TokenCrossEntropy(),
            optimizer,
            streams=("dropout", "hash"),
            axis_name=parallel.axis_name,
        )
    )
    with pytest.raises(NotImplementedError, match="must be floats; got int32 at .'statistics'"):
        step(state, parallel.split(batch))


def test_accumulate_must_divide_the_batch():
    model, optimizer = tiny.Tiny(), OptimizerSettings().build(3)
    batch = next(iter(tiny.batches()))
    state = jax.eval_shape(lambda: TrainState.create(model, optimizer, batch, seed=0))
    step = make_train_step(model, TokenCrossEntropy(), optimizer, accumulate=3)
    with pytest.raises(ValueError, match="accumulate must divide the rows .* got 3 and 8"):
        jax.eval_shape(step, state, batch)


@pytest.mark.parametrize(
    ("kind", "devices", "accumulate"),
    daily([("jit", 1, 1), ("jit", 2, 2), ("pmap", 2, 2)], ("pmap", 2, 2)),
)
def test_a_gradient_is_a_mean_over_tokens_or_sentences(kind, devices, accumulate):
    parallel = parallel_over(kind, jax.devices()[:devices])
    model, optimizer = tiny.Tiny(), OptimizerSettings("sgd", learning_rate=1.0).build(3)
    batch = next(iter(tiny.batches()))
    # Row i has i tokens, at most 6: 27 in 7 sentences and a row without any.
    batch["target"] = np.where(np.tri(8, 6, -1) > 0, batch["target"], 0)
    before = created(model, optimizer, batch)
    found = {}
    for over in ("tokens", "sentences"):
        step = make_train_step(
            model,
            TokenCrossEntropy(gradient_mean_over=over),
            optimizer,
            accumulate=accumulate,
            axis_name=parallel.axis_name,
        )
        after, metrics = parallel.compile(step)(parallel.place(before), parallel.split(batch))
        sums, _, norm = parallel.read(metrics)
        params = jax.device_get(parallel.gather(after).params)
        gradient = jax.tree.map(np.subtract, jax.device_get(before.params), params)
        found[over] = sums["loss"], norm, jax.tree.leaves(gradient)
    (loss, norm, gradient), (same, longer_norm, longer) = found.values()
    assert loss == same and longer_norm == pytest.approx(27 / 7 * norm, rel=1e-5)
    for short, long in zip(gradient, longer, strict=True):
        np.testing.assert_allclose(long, 27 / 7 * short, rtol=1e-4, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class TwoMeans(TokenCrossEntropy):
    """The mean of −log p over tokens, and 3 times that of −log p of the first tokens over rows."""

    def inputs(self, batch):
        return {name: batch[name] for name in ("source", "target")}  # "row" is not for the model

    def sums(self, outputs, batch):
        first = token_sums(outputs[:, :1], batch["target"][:, :1])
        return super().sums(outputs, batch) | {"first": first["nll"]}

    def loss(self, sums, shares):
        return sums["nll"] + 3 * sums["first"] / shares["sentences"]


@pytest.mark.parametrize(
    ("kind", "devices", "accumulate"),
    daily([("jit", 1, 1), ("jit", 2, 2), ("pmap", 2, 2)], ("jit", 1, 1)),
)
def test_each_mean_of_a_loss_has_its_own_count(kind, devices, accumulate):
    parallel = parallel_over(kind, jax.devices()[:devices])
    model, optimizer = tiny.Tiny(), OptimizerSettings("sgd", learning_rate=1.0).build(3)
    batch = next(iter(tiny.batches()))
    batch["target"] = np.where(np.tri(8, 6, -1) > 0, batch["target"], 0)  # as above: 27 in 7
    before = created(model, optimizer, batch)

    @jax.jit
    @jax.grad
    def mean_gradient(params):
        logits = model.apply({"params": params}, **batch)
        both = [token_sums(logits[:, :n], batch["target"][:, :n])["nll"] for n in (6, 1)]
        return both[0] / 27 + 3 * both[1] / 7

    step = make_train_step(
        model, TwoMeans(), optimizer, accumulate=accumulate, axis_name=parallel.axis_name
    )
    given = batch | {"row": np.arange(8)}
    after, metrics = parallel.compile(step)(parallel.place(before), parallel.split(given))
    assert parallel.read(metrics).counts == {"tokens": 27, "sentences": 7}
    expected = jax.tree.map(np.subtract, before.params, mean_gradient(before.params))
    found = jax.device_get(parallel.gather(after).params)
    assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_packed_row_has_a_sentence_for_each_segment():
    segments = np.array([[1, 1, 2, 3, 3, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    tokens = np.where(segments, 7, 0)
    for names in (("target", "target_segments"), ("tokens", "segments")):
        assert num_sentences(dict(zip(names, (tokens, segments), strict=True))) == 4
        assert num_sentences({names[0]: tokens}) == 2


def test_a_count_below_one_divides_too():
    over, shares = divisors({"tokens": np.float32(0.25), "sentences": np.float32(0)}, "tokens")
    assert (over, shares) == (0.25, {"tokens": 1, "sentences": 4})
