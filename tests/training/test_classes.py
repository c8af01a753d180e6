import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.training.classes import ClassCrossEntropy

OBJECTIVE = ClassCrossEntropy()
sums_of = jax.jit(OBJECTIVE.sums)


@pytest.mark.parametrize("shape", [(3,), (3, 5)], ids=["sequences", "tokens"])
def test_sums_are_those_of_the_labels_that_count(shape):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(*shape, 7)) * 3
    label = draw.integers(-1, 7, shape)
    label.flat[0], label.flat[-1] = -1, 4
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = [(row, y) for row, y in zip(log_p.reshape(-1, 7), label.ravel(), strict=True) if y >= 0]

    batch = {"tokens": np.array([[4, 5, 0]] * 3), "label": label}
    assert OBJECTIVE.inputs(batch).keys() == {"tokens"}
    counts = {name: float(x) for name, x in jax.jit(OBJECTIVE.counts)(batch).items()}
    assert counts == {"tokens": 6, "labels": len(real)}
    sums = sums_of(logits, batch)
    means = OBJECTIVE.means({name: float(x) for name, x in sums.items()}, counts)
    assert means["loss"] == pytest.approx(-np.mean([row[y] for row, y in real]), rel=1e-5)
    assert means["accuracy"] == pytest.approx(np.mean([row.argmax() == y for row, y in real]))


def test_what_is_not_counted_has_no_gradient():
    batch = {"tokens": jnp.ones((2, 3), jnp.int32), "label": jnp.array([1, -1])}
    logits = np.array([[0.5, 1.5, -np.inf], [2.0, 3.0, 4.0]], "f")
    grad = np.asarray(jax.jit(jax.grad(lambda x: OBJECTIVE.sums(x, batch)["loss"]))(logits))
    assert np.isfinite(grad).all() and not grad[1].any() and grad[0, :2].all()
