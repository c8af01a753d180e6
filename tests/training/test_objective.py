import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.output import DeferredLogits
from attnlab.training.objective import TokenCrossEntropy, token_sums


def by_hand(logits, targets, epsilon):
    """Sum over the real tokens of the cross entropy with (1 − ε)·onehot + ε/V, in float64."""
    loss = nll = 0.0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.ravel(), strict=True):
        if target == 0:
            continue
        log_p = row - np.log(np.exp(row).sum())
        wanted = np.full(len(row), epsilon / len(row))
        wanted[target] += 1 - epsilon
        loss -= wanted @ log_p
        nll -= log_p[target]
    return loss, nll


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_sums_are_those_of_the_real_tokens(epsilon):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(3, 5, 7)) * 3
    targets = np.array([[4, 5, 2, 0, 0], [6, 2, 0, 0, 0], [0, 0, 0, 0, 0]])
    sums = token_sums(
        jnp.asarray(logits, jnp.float32), jnp.asarray(targets), label_smoothing=epsilon
    )
    loss, nll = by_hand(logits, targets, epsilon)
    assert float(sums["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(sums["nll"]) == pytest.approx(nll, rel=1e-5)
    counts = TokenCrossEntropy().counts({"target": jnp.asarray(targets)})
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 5, "sentences": 2}
    assert float(sums["correct"]) == ((logits.argmax(-1) == targets) & (targets != 0)).sum()


def test_weights_say_how_much_a_token_counts():
    draw = np.random.default_rng(0)
    logits = jnp.asarray(draw.normal(size=(2, 3, 7)), jnp.float32)
    batch = {
        "tokens": jnp.array([[4, 5, 2], [6, 3, 0]]),
        "weights": jnp.array([[0.0, 1.0, 2.0], [0.0, 1.0, 1.0]]),  # of padding nothing counts
    }
    objective = TokenCrossEntropy(0.1)
    assert objective.inputs(batch).keys() == {"tokens"}
    counts = objective.counts(batch)
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 4, "sentences": 2}
    found = objective.sums(logits, batch)
    parts = [
        token_sums(logits[i, t : t + 1], batch["tokens"][i, t : t + 1], label_smoothing=0.1)
        for i, t in ((0, 1), (0, 2), (0, 2), (1, 1))
    ]
    for name, x in found.items():
        assert float(x) == pytest.approx(sum(float(part[name]) for part in parts), rel=1e-6)


@pytest.mark.parametrize("wrong", [7, -1, -100])
def test_ids_outside_of_the_vocabulary_make_the_loss_nan(wrong):
    """−100 is what other libraries leave out of a loss; trained on, it would be one of the words.

    Weights of 0 do not hide it.
    """
    targets, weights = jnp.array([[5, wrong, 0]]), jnp.array([[1.0, 0.0, 1.0]])
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 7)), jnp.float32)
    for x in (logits, DeferredLogits(logits, jnp.eye(7), block=2)):
        sums = jax.jit(token_sums)(x, targets, weights=weights)
        assert jnp.isnan(sums["loss"]) and jnp.isnan(sums["nll"])


def test_padding_has_no_gradient_even_where_logits_overflow():
    logits = jnp.zeros((1, 2, 5)).at[0, 1].set(jnp.inf)
    grad = jax.grad(lambda x: token_sums(x, jnp.array([[4, 0]]))["loss"])(logits)
    assert jnp.isfinite(grad[0, 0]).all()


def test_means_are_weighted_by_tokens():
    means_of = TokenCrossEntropy().means
    sums = {"loss": 6.0, "nll": math.log(2) * 3, "correct": 1.0}
    means = means_of(sums, {"tokens": 3.0, "sentences": 2.0})
    assert means == {
        "loss": 2.0,
        "nll": pytest.approx(math.log(2)),
        "perplexity": pytest.approx(2.0),
        "accuracy": pytest.approx(1 / 3),
    }
    assert means_of(sums | {"nll": 1e4}, {"tokens": 1.0})["perplexity"] == math.inf
