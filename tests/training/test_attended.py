"""Losses of attention: REINFORCE through a whole decoder, and what gradients differ by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.alignment import Attended
from attnlab.models.rnn_search import RNNSearch
from attnlab.training.attended import AttendedCrossEntropy
from attnlab.training.gradient_noise import gradient_noise
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.step import TrainState, make_train_step
from tests.models.rnn_checks import SOURCE_VOCAB, TARGET_VOCAB, random_params
from tests.training import tiny

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = {"embed_features": 3, "hidden_features": 5, "maxout_features": 2, "align_features": 7}
BATCH = {"source": jnp.array([[5, 2]]), "target": jnp.array([[7, 4, 0]])}


def search(attention="hard", **options):
    return RNNSearch(SOURCE_VOCAB, TARGET_VOCAB, **(SIZES | {"attention": attention} | options))


@pytest.mark.usefixtures("x64")
def test_reinforce_through_the_decoder_is_the_gradient_of_the_expected_likelihood():
    """Two places at each of two steps: four paths, each weighed by its own probability."""
    model = search(expected_rate=0.0, param_dtype=jnp.float64)
    params = random_params(model)
    objective = AttendedCrossEntropy(reinforce=1.0)
    baseline = {"sum": jnp.float32(-7.0), "weight": jnp.float32(1.0)}

    def run(params, key):
        outputs, moved = model.apply(
            {"params": params, "baseline": baseline},
            **objective.inputs(BATCH),
            deterministic=False,
            rngs={"sample": key},
            mutable=["baseline"],
        )
        return outputs, moved, objective.sums(outputs, BATCH)

    def surrogate(params, key):
        outputs, moved, sums = run(params, key)
        return objective.loss(sums, {}), (outputs.log_prob[0, :2].sum(), sums, moved)

    keys = jax.random.split(jax.random.key(0), 64)
    take = jax.jit(jax.vmap(jax.grad(surrogate, has_aux=True), (None, 0)))
    grads, (log_probs, sums, moved) = take(params, keys)
    _, first = np.unique(np.round(log_probs, 9), return_index=True)
    probabilities = jnp.exp(log_probs[first])
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6, err_msg="all paths were seen")
    assert len(first) == 4

    def expected(params):
        def of_path(key):
            outputs, _, sums = run(params, key)
            return jnp.exp(outputs.log_prob[0, :2].sum()) * sums["nll"]

        return jax.vmap(of_path)(keys[first]).sum()

    true = jax.jit(jax.grad(expected))(params)
    for (path, got), want in zip(
        jax.tree.leaves_with_path(grads), jax.tree.leaves(true), strict=True
    ):
        mean = jnp.einsum("p,p...->...", probabilities, got[first])
        np.testing.assert_allclose(
            mean, want, rtol=1e-5, atol=1e-7, err_msg=jax.tree_util.keystr(path)
        )
    assert abs(true["decoder"]["score"]["kernel"]).max() > 1e-3
    of_batch = 0.9 * -7.0 + 0.1 * -sums["nll"][0]
    np.testing.assert_allclose(moved["baseline"]["sum"][0], of_batch, rtol=1e-5)


def test_the_baseline_is_a_mean_from_the_first_step_on():
    """After two rewards their sum is by weights that add up to 0.19."""
    model, targets = search(), jnp.array([[7, 2, 0], [2, 0, 0]])
    advantage, moved = model.apply(
        {"baseline": {"sum": jnp.float32(-1.9), "weight": jnp.float32(0.19)}},
        *(jnp.zeros((2, 3, 9)), targets, False),
        method="_advantage",
        mutable=["baseline"],
    )
    rewards = -np.log(9) * np.array([2, 1])  # of two words and of one, PAD aside
    np.testing.assert_allclose(advantage, rewards + 10, rtol=1e-5)
    np.testing.assert_allclose(moved["baseline"]["weight"], 0.9 * 0.19 + 0.1, rtol=1e-6)
    np.testing.assert_allclose(
        moved["baseline"]["sum"], 0.9 * -1.9 + 0.1 * rewards.mean(), rtol=1e-5
    )


def test_the_terms_are_those_of_the_paper():
    weights = jnp.array([[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    batch = {"source": jnp.array([[5, 2, 0]]), "target": jnp.array([[7, 2, 0]])}
    outputs = Attended(
        jnp.zeros((1, 3, 9)), weights, jnp.log(jnp.array([[0.25, 0.5, 1.0]])), jnp.array([-2.0])
    )
    objective = AttendedCrossEntropy(reinforce=3.0, entropy=0.5, doubly_stochastic=2.0)
    sums = objective.sums(outputs, batch)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)) + np.log(2)
    np.testing.assert_allclose(sums["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(sums["doubly_stochastic"], 2 * 0.25**2, rtol=1e-6)
    np.testing.assert_allclose(sums["reinforce"], 2 * np.log(0.125), rtol=1e-6)
    whole = 2 * np.log(9) + 3 * 2 * np.log(0.125) - 0.5 * entropy + 2 * 2 * 0.25**2
    np.testing.assert_allclose(objective.loss(sums, {}), whole, rtol=1e-6)
    means = objective.means({k: float(x) for k, x in sums.items()}, objective.counts(batch))
    np.testing.assert_allclose(means["entropy"], entropy / 2, rtol=1e-6)


@pytest.mark.parametrize("attention", ["soft", "hard", "straight_through"])
def test_training_moves_the_alignment_and_search_takes_one_annotation(attention):
    model, objective = search(attention), AttendedCrossEntropy(reinforce=1.0, entropy=0.01)
    optimizer = OptimizerSettings(learning_rate=0.1).build(3)
    state = TrainState.create(model, optimizer, objective.inputs(BATCH), seed=0)
    assert set(state.collections) == ({"baseline"} if attention == "hard" else set())
    random = random_params(model)
    state = state.replace(params=random)
    streams = ("dropout", "sample")
    step = jax.jit(make_train_step(model, objective, optimizer, streams=streams, accumulate=1))
    for _ in range(3):  # the first step of all has no baseline yet
        state, metrics = step(state, BATCH)
    assert np.isfinite(metrics.gradient_norm)
    moved = abs(state.params["decoder"]["query"]["kernel"] - random["decoder"]["query"]["kernel"])
    assert moved.max() > 1e-4

    @jax.jit
    def looked(variables):
        memory = model.apply(variables, BATCH["source"], method="encode")
        read = jnp.array([[1, 7, 4]])
        return model.apply(variables, memory, read, return_weights=True, method="decode")[1]

    weights = looked(state.variables)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert (attention == "soft") == bool((weights.max(-1) < 1).any())


def test_a_sentence_may_have_the_soft_weights():
    model, params = search(expected_rate=1.0), random_params(search())
    objective = AttendedCrossEntropy(reinforce=1.0)
    outputs = model.apply(
        {"params": params},
        **objective.inputs(BATCH),
        deterministic=False,
        rngs={"sample": jax.random.key(0)},
    )
    soft = search("soft").apply({"params": params}, **BATCH)
    np.testing.assert_allclose(outputs.logits, soft, rtol=1e-5, atol=1e-6)
    assert not outputs.log_prob.any()


def test_refusals():
    for options, message in (
        ({"attention": "firm"}, "attention must be one of 'soft', 'hard', 'straight_through'; got"),
        ({"expected_rate": 1.5}, r"expected_rate must be in \[0, 1\]; got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            search(**options).init(jax.random.key(0), **BATCH)
    with pytest.raises(ValueError, match='got a batch with "weights" of tokens'):
        AttendedCrossEntropy().inputs(BATCH | {"weights": jnp.ones(1)})
    with pytest.raises(ValueError, match="a variance takes at least 2 batches; got 1"):
        gradient_noise(search(), TokenCrossEntropy(), [BATCH], streams=())


def test_gradient_noise_is_the_variance_over_batches_and_draws():
    model, objective, batches = tiny.Tiny(), TokenCrossEntropy(), tiny.validation()
    variables = model.init(jax.random.key(0), **batches[0])

    def gradient(batch):
        def loss(params):
            sums = objective.sums(model.apply({"params": params}, **batch), batch)
            return sums["loss"] / objective.counts(batch)["tokens"]

        grads = jax.grad(loss)(variables["params"])
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(grads)])

    found = gradient_noise(model, objective, batches, streams=("dropout",))(variables)
    one, two = map(gradient, batches)
    np.testing.assert_allclose(found["gradient_variance"], ((one - two) ** 2).sum() / 2, rtol=1e-3)
    norm = np.linalg.norm((one + two) / 2)
    np.testing.assert_allclose(found["mean_gradient_norm"], norm, rtol=1e-4)
    dropped = gradient_noise(
        tiny.Tiny(dropout_rate=0.5), objective, [batches[0]] * 2, streams=("dropout",)
    )
    assert dropped(variables)["gradient_variance"] > 1e-5
