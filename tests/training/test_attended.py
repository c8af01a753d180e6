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
from tests.daily import daily
from tests.models.rnn_checks import SOURCE_VOCAB, TARGET_VOCAB, random_params
from tests.training import tiny

SIZES = {"embed_features": 3, "hidden_features": 5, "maxout_features": 2, "align_features": 7}
BATCH = {"source": np.array([[5, 2]], np.int32), "target": np.array([[7, 4, 0]], np.int32)}


def search(attention="hard", **options):
    return RNNSearch(SOURCE_VOCAB, TARGET_VOCAB, **(SIZES | {"attention": attention} | options))


@pytest.mark.usefixtures("x64")
def test_reinforce_through_the_decoder_is_the_gradient_of_the_expected_likelihood():
    """Two places at each of two steps: four paths, each weighed by its own probability."""
    model = search(expected_rate=0.0, param_dtype=jnp.float64)
    params = random_params(model)
    objective = AttendedCrossEntropy(reinforce=1.0)
    baseline = {"sum": np.float32(-7.0), "weight": np.float32(1.0)}

    def run(params, key):
        outputs, moved = model.apply(
            {"params": params, "baseline": baseline},
            **objective.inputs(BATCH),
            deterministic=False,
            rngs={"sample": key},
            mutable=["baseline"],
        )
        return outputs.log_prob[0, :2].sum(), moved, objective.sums(outputs, BATCH)

    def surrogate(params, key):
        log_prob, moved, sums = run(params, key)
        return objective.loss(sums, {}), (log_prob, sums["nll"], moved["baseline"]["sum"])

    @jax.jit
    def take(params):
        keys = jax.random.split(jax.random.key(0), 64)
        return jax.vmap(jax.grad(surrogate, has_aux=True), (None, 0))(params, keys), keys

    (grads, (log_probs, nll, moved)), keys = jax.device_get(take(params))
    _, first = np.unique(np.round(log_probs, 9), return_index=True)
    probabilities = np.exp(log_probs[first])
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6, err_msg="all paths were seen")
    assert len(first) == 4

    @jax.jit
    @jax.grad
    def true_gradient(params):
        def of_path(key):
            log_prob, _, sums = run(params, key)
            return jnp.exp(log_prob) * sums["nll"]

        return jax.vmap(of_path)(keys[first]).sum()

    true = jax.device_get(true_gradient(params))
    for (path, got), want in zip(
        jax.tree.leaves_with_path(grads), jax.tree.leaves(true), strict=True
    ):
        mean = np.einsum("p,p...->...", probabilities, got[first])
        np.testing.assert_allclose(
            mean, want, rtol=1e-5, atol=1e-7, err_msg=jax.tree_util.keystr(path)
        )
    assert abs(true["decoder"]["score"]["kernel"]).max() > 1e-3
    np.testing.assert_allclose(moved[0], 0.9 * -7.0 + 0.1 * -nll[0], rtol=1e-5)


def test_the_baseline_is_a_mean_from_the_first_step_on():
    """After two rewards their sum is by weights that add up to 0.19."""
    model, targets = search(), np.array([[7, 2, 0], [2, 0, 0]])
    logits = np.zeros((2, 3, 9), np.float32)

    @jax.jit
    def advantage_of(baseline):
        return model.apply(
            {"baseline": baseline}, logits, targets, False, method="_advantage", mutable="baseline"
        )

    advantage, moved = advantage_of({"sum": np.float32(-1.9), "weight": np.float32(0.19)})
    rewards = -np.log(9) * np.array([2, 1])  # of two words and of one, PAD aside
    np.testing.assert_allclose(advantage, rewards + 10, rtol=1e-5)
    np.testing.assert_allclose(moved["baseline"]["weight"], 0.9 * 0.19 + 0.1, rtol=1e-6)
    np.testing.assert_allclose(
        moved["baseline"]["sum"], 0.9 * -1.9 + 0.1 * rewards.mean(), rtol=1e-5
    )


def test_the_terms_are_those_of_the_paper():
    weights = np.float32([[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    batch = {"source": np.array([[5, 2, 0]]), "target": np.array([[7, 2, 0]])}
    logits, log_prob = np.zeros((1, 3, 9), np.float32), np.log(np.float32([[0.25, 0.5, 1.0]]))
    outputs = Attended(logits, weights, log_prob, np.float32([-2.0]))
    objective = AttendedCrossEntropy(reinforce=3.0, entropy=0.5, doubly_stochastic=2.0)

    @jax.jit
    def found(outputs):
        sums = objective.sums(outputs, batch)
        return sums, objective.loss(sums, {}), objective.counts(batch)

    sums, loss, counts = jax.device_get(found(outputs))
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)) + np.log(2)
    np.testing.assert_allclose(sums["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(sums["doubly_stochastic"], 2 * 0.25**2, rtol=1e-6)
    np.testing.assert_allclose(sums["reinforce"], 2 * np.log(0.125), rtol=1e-6)
    whole = 2 * np.log(9) + 3 * 2 * np.log(0.125) - 0.5 * entropy + 2 * 2 * 0.25**2
    np.testing.assert_allclose(loss, whole, rtol=1e-6)
    means = objective.means(sums, counts)
    np.testing.assert_allclose(means["entropy"], entropy / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "attention", daily(["soft", "hard", "straight_through"], "hard", "straight_through")
)
def test_training_moves_the_alignment_and_search_takes_one_annotation(attention):
    model, objective = search(attention), AttendedCrossEntropy(reinforce=1.0, entropy=0.01)
    optimizer = OptimizerSettings(learning_rate=0.1).build(3)
    shapes = jax.eval_shape(
        lambda: TrainState.create(model, optimizer, objective.inputs(BATCH), seed=0)
    )
    assert set(shapes.collections) == ({"baseline"} if attention == "hard" else set())
    random = random_params(model)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes).replace(params=random)
    streams = ("dropout", "sample")
    step = jax.jit(make_train_step(model, objective, optimizer, streams=streams, accumulate=1))
    for _ in range(3):  # the first step of all has no baseline yet
        state, metrics = step(state, BATCH)
    assert np.isfinite(metrics.gradient_norm)
    moved = np.subtract(*(x["decoder"]["query"]["kernel"] for x in (state.params, random)))
    assert abs(moved).max() > 1e-4

    @jax.jit
    def looked(variables):
        memory = model.apply(variables, BATCH["source"], method="encode")
        read = np.array([[1, 7, 4]])
        return model.apply(variables, memory, read, return_weights=True, method="decode")[1]

    weights = np.asarray(looked(state.variables))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert (attention == "soft") == bool((weights.max(-1) < 1).any())


def test_a_sentence_may_have_the_soft_weights():
    model, params = search(expected_rate=1.0), random_params(search())
    objective = AttendedCrossEntropy(reinforce=1.0)

    @jax.jit
    def both(params):
        rngs = {"sample": jax.random.key(0)}
        options = {"deterministic": False, "rngs": rngs}
        options |= {"mutable": ["baseline"]}
        outputs, _ = model.apply({"params": params}, **objective.inputs(BATCH), **options)
        return outputs, search("soft").apply({"params": params}, **BATCH)

    outputs, soft = both(params)
    np.testing.assert_allclose(outputs.logits, soft, rtol=1e-5, atol=1e-6)
    assert not np.any(outputs.log_prob)


def test_gradient_noise_is_the_variance_over_batches_and_draws():
    model, objective, batches = tiny.Tiny(), TokenCrossEntropy(), tiny.validation()
    variables = jax.jit(lambda: model.init(jax.random.key(0), **batches[0]))()

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        sums = objective.sums(model.apply({"params": params}, **batch), batch)
        return sums["loss"] / objective.counts(batch)["tokens"]

    found = gradient_noise(model, objective, batches, streams=("dropout",))(variables)
    one, two = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient(variables["params"], batch))])
        for batch in batches
    )
    np.testing.assert_allclose(found["gradient_variance"], ((one - two) ** 2).sum() / 2, rtol=1e-3)
    norm = np.linalg.norm((one + two) / 2)
    np.testing.assert_allclose(found["mean_gradient_norm"], norm, rtol=1e-4)
    dropped = gradient_noise(
        tiny.Tiny(dropout_rate=0.5), objective, [batches[0]] * 2, streams=("dropout",)
    )
    assert dropped(variables)["gradient_variance"] > 1e-5
