import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.training import schedules
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel, shardings_on


def test_the_transformers_schedule_is_the_papers():
    schedule = schedules.rsqrt((512 * 4000) ** -0.5, 4000)
    for step in (1, 100, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(paper, rel=1e-5)


def test_linear_is_zero_after_the_last_step():
    schedule = schedules.linear(3.0, 10, 49)
    assert [float(schedule(i)) for i in (0, 9, 29, 49)] == pytest.approx([0.3, 3.0, 1.5, 0.0])
    assert float(schedules.linear(3.0, 0, 1)(0)) == 1.5  # a single step trains
    assert float(schedules.linear(3.0, 1, 1)(0)) == float(schedules.cosine(3.0, 1, 1)(0)) == 3.0


def test_cosine_is_half_done_half_way_and_zero_after_the_last_step():
    schedule = schedules.cosine(4.0, 10, 49)
    found = [float(schedule(i)) for i in (0, 9, 19, 29, 49)]
    assert found == pytest.approx([0.4, 4.0, 2 + 2**0.5, 2.0, 0.0], abs=1e-6)


def test_constant_warms_up_or_does_not():
    assert [float(schedules.constant(2.0, 4)(i)) for i in (0, 3, 9)] == [0.5, 2.0, 2.0]
    assert float(schedules.constant(2.0)(0)) == 2.0


def test_clipping_is_by_the_norm_of_all_parameters():
    optimizer = OptimizerSettings(optimizer="sgd", learning_rate=1.0, clip_norm=1.0).build(10)
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    assert float(updates["a"][0]) == pytest.approx(-0.6)
    assert float(updates["b"][0]) == pytest.approx(-0.8)


def test_adam_is_told_its_constants():
    """The first step of Adam is −g / (|g| + ε), whatever β."""
    optimizer = OptimizerSettings(learning_rate=1.0, epsilon=1.0).build(10)
    params = jnp.zeros(1)
    updates, _ = optimizer.update(jnp.array([1.0]), optimizer.init(params), params)
    assert float(updates[0]) == pytest.approx(-0.5, rel=1e-3)


@pytest.mark.slow
def test_adafactors_step_is_clipped_and_relative_to_the_parameters():
    """Shazeer & Stern 2018, algorithm 4: at first û = g / |g| element by element, of RMS 1."""
    optimizer = OptimizerSettings(optimizer="adafactor", learning_rate=0.1).build(10)
    params = jnp.array([3.0, 4.0, 0.0])
    updates, state = optimizer.update(jnp.array([2.0, -7.0, 5.0]), optimizer.init(params), params)
    size = 0.1 * (25 / 3) ** 0.5
    np.testing.assert_allclose(updates, [-size, size, -size], rtol=1e-5)
    # β₂ = 1 − 2^−0.8: after a gradient of 1 one of 10 has û = 10 / √(β₂ + 100 (1 − β₂)) > 1.
    larger = OptimizerSettings(optimizer="adafactor", learning_rate=1.0).build(10)
    one = jnp.ones(1)
    _, state = larger.update(one, larger.init(one), one)
    assert float(larger.update(10 * one, state, one)[0][0]) == pytest.approx(-1.0, rel=1e-5)


def test_adadelta_begins_with_its_epsilon():
    """Zeiler 2012, algorithm 1: √ε / √(0.05 g² + ε) · g."""
    optimizer = OptimizerSettings(optimizer="adadelta", learning_rate=1.0).build(10)
    params = jnp.zeros(1)
    updates, _ = optimizer.update(jnp.array([2.0]), optimizer.init(params), params)
    assert float(updates[0]) == pytest.approx(-2 * (1e-6) ** 0.5 / (0.05 * 4 + 1e-6) ** 0.5)


def test_bert_decays_matrices_alone_and_does_not_correct_its_moments():
    """Two steps of the released AdamWeightDecayOptimizer, written out."""
    rate, b1, b2, epsilon, decay = 0.1, 0.9, 0.999, 1e-6, 0.01
    optimizer = OptimizerSettings(
        learning_rate=rate, epsilon=epsilon, bias_correction=False, weight_decay=decay
    ).build(10)
    params = {"a": {"kernel": jnp.array([2.0]), "bias": jnp.array([3.0])},
              "norm": {"scale": jnp.array([4.0])}}  # fmt: skip
    state = optimizer.init(params)
    m = v = 0.0
    for gradient in (0.5, -0.25):
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        step = m / (v**0.5 + epsilon)
        grads = jax.tree.map(lambda x, g=gradient: jnp.full_like(x, g), params)
        updates, state = optimizer.update(grads, state, params)
        assert float(updates["a"]["kernel"][0]) == pytest.approx(-rate * (step + decay * 2), 1e-5)
        assert float(updates["a"]["bias"][0]) == pytest.approx(-rate * step, 1e-5)
        assert float(updates["norm"]["scale"][0]) == pytest.approx(-rate * step, 1e-5)


def test_parameters_with_logical_axes_are_known_by_their_names():
    one = nn.Partitioned(jnp.ones((1, 1)), (None, "heads"))
    params = {"query": {"kernel": one, "bias": one}}
    optimizer = OptimizerSettings(learning_rate=0.1, weight_decay=0.5).build(10)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    assert float(updates["query"]["kernel"].value[0, 0]) == pytest.approx(-0.05)
    assert float(updates["query"]["bias"].value[0, 0]) == 0.0
    mesh = Parallel(jax.devices()[:1]).mesh
    boxed, bare = shardings_on(mesh, params), shardings_on(mesh, nn.unbox(params))
    assert nn.unbox(boxed) == bare
