import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.bert import Pretraining
from attnlab.models.output import DeferredLogits
from attnlab.training.masked import MaskedCrossEntropy

DRAW = np.random.default_rng(0)
X, E = (DRAW.normal(size=s).astype("f") for s in ((3, 2, 5), (7, 5)))
NEXT = DRAW.normal(size=(3, 2)).astype("f")
BATCH = {
    "tokens": np.array([[1, 4, 2, 5], [1, 3, 3, 0], [0, 0, 0, 0]]),
    "types": np.zeros((3, 4), np.int32),
    "masked": np.array([[1, 3], [2, 0], [0, 0]]),
    "target": np.array([[6, 4], [5, 0], [0, 0]]),
    "next": np.array([1, 0, -1]),
}


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("next_sentence", [True, False])
def test_both_means_are_over_the_whole_batch(next_sentence):
    objective = MaskedCrossEntropy(next_sentence)
    log_p = log_softmax(X @ E.T)
    masked = -(log_p[0, 0, 6] + log_p[0, 1, 4] + log_p[1, 0, 5]) / 3
    pairs = -(log_softmax(NEXT)[0, 1] + log_softmax(NEXT)[1, 0]) / 2
    wanted = float(masked + next_sentence * pairs)

    assert objective.inputs(BATCH).keys() == {"tokens", "types", "masked"}

    @jax.jit
    def found(x, following, batch):
        outputs = Pretraining(DeferredLogits(x, jnp.asarray(E)), following)
        return objective.sums(outputs, batch), objective.counts(batch)

    sums, counts = jax.device_get(found(X, NEXT, BATCH))
    assert {name: int(x) for name, x in counts.items()} == {"tokens": 7, "masked": 3, "pairs": 2}
    loss = objective.loss(sums, {name: x / counts["masked"] for name, x in counts.items()})
    assert float(loss) / 3 == pytest.approx(wanted, rel=1e-5)
    means = objective.means(*({k: float(x) for k, x in found.items()} for found in (sums, counts)))
    assert means["loss"] == pytest.approx(wanted, rel=1e-5)
    right = (NEXT[0, 1] > NEXT[0, 0], NEXT[1, 0] > NEXT[1, 1])
    assert means["next_accuracy"] == pytest.approx(float(sum(right)) / 2)
    assert set(objective.shown) <= means.keys() and objective.headline in means


def test_rows_without_pairs_have_no_mean_of_pairs():
    means = MaskedCrossEntropy(next_sentence=False).means(
        {"masked_nll": 6.0, "masked_correct": 1.0, "next_nll": 0.0, "next_correct": 0.0},
        {"tokens": 9.0, "masked": 3.0, "pairs": 0.0},
    )
    assert means["loss"] == 2.0 and "next_accuracy" not in means


def test_rows_that_fill_a_batch_have_no_gradient():
    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients(x, following, batch):
        outputs = Pretraining(DeferredLogits(x, jnp.asarray(E)), following)
        sums = MaskedCrossEntropy().sums(outputs, batch)
        return sums["masked_nll"] + sums["next_nll"]

    of_masked, of_next = jax.device_get(gradients(X, NEXT, BATCH))
    assert not of_masked[2].any() and not of_masked[1, 1].any() and of_masked[1, 0].any()
    assert not of_next[2].any() and np.isfinite(of_next).all() and of_next[:2].all()
