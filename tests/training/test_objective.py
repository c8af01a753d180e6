import math

import jax
import numpy as np
import pytest

from attnlab.models.output import DeferredLogits
from attnlab.training.objective import TokenCrossEntropy, token_sums

TOKEN_SUMS = jax.jit(token_sums)


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
    logits = np.float32(draw.normal(size=(3, 5, 7)) * 3)
    targets = np.array([[4, 5, 2, 0, 0], [6, 2, 0, 0, 0], [0, 0, 0, 0, 0]])

    @jax.jit
    def found(logits):
        counts = TokenCrossEntropy().counts({"target": targets})
        return token_sums(logits, targets, label_smoothing=epsilon), counts

    sums, counts = found(logits)
    loss, nll = by_hand(np.float64(logits), targets, epsilon)
    assert float(sums["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(sums["nll"]) == pytest.approx(nll, rel=1e-5)
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 5, "sentences": 2}
    assert float(sums["correct"]) == ((logits.argmax(-1) == targets) & (targets != 0)).sum()


def test_weights_say_how_much_a_token_counts():
    draw = np.random.default_rng(0)
    logits = np.float32(draw.normal(size=(2, 3, 7)))
    batch = {
        "tokens": np.array([[4, 5, 2], [6, 3, 0]]),
        "weights": np.float32([[0, 1, 2], [0, 1, 1]]),  # of padding nothing counts
    }
    objective = TokenCrossEntropy(0.1)
    assert objective.inputs(batch).keys() == {"tokens"}
    counted = (0, 0, 0, 1), (1, 2, 2, 1)  # rows and places, one of them twice

    @jax.jit
    def found(logits):
        of_counted = token_sums(logits[counted], batch["tokens"][counted], label_smoothing=0.1)
        return objective.counts(batch), objective.sums(logits, batch), of_counted

    counts, sums, expected = found(logits)
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 4, "sentences": 2}
    assert {name: float(x) for name, x in sums.items()} == pytest.approx(
        {name: float(x) for name, x in expected.items()}, rel=1e-6
    )


@pytest.mark.parametrize("wrong", [7, -1, -100])
def test_ids_outside_of_the_vocabulary_make_the_loss_nan(wrong):
    """−100 is what other libraries leave out of a loss; trained on, it would be one of the words.

    Weights of 0 do not hide it.
    """
    targets, weights = np.array([[5, wrong, 0]]), np.float32([[1, 0, 1]])
    logits = np.float32(np.random.default_rng(0).normal(size=(1, 3, 7)))
    for x in (logits, DeferredLogits(logits, np.eye(7, dtype=np.float32), block=2)):
        sums = TOKEN_SUMS(x, targets, weights=weights)
        assert np.isnan(sums["loss"]) and np.isnan(sums["nll"])


def test_padding_has_no_gradient_even_where_logits_overflow():
    logits = np.zeros((1, 2, 5), np.float32)
    logits[0, 1] = np.inf
    grad = jax.jit(jax.grad(lambda x: token_sums(x, np.array([[4, 0]]))["loss"]))(logits)
    assert np.isfinite(grad[0, 0]).all()


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
