"""Successive halving: which learning rates go on, for how long, and which is left."""

import pytest

from attnlab.training import tuning
from attnlab.training.curve import Diverged
from attnlab.training.loop import LoopSettings
from attnlab.training.optimizers import OptimizerSettings

LOOP = LoopSettings(steps=80, validate_every=7, checkpoint_every=3, average=2)
ADAM = OptimizerSettings(learning_rate=0.1, warmup_steps=30)


def searched(loss, factors, optimizer=ADAM, training=LOOP):
    seen = []

    def measure(optimizer, loop):
        seen.append((optimizer, loop))
        return loss(optimizer.learning_rate, loop.steps)

    return tuning.search(optimizer, training, factors, measure), seen


def test_the_better_half_goes_on_twice_as_long():
    """At 5 steps the largest rate is ahead, later that of 0.1."""
    losses = {5: {0.1: 3.0, 0.2: 2.0, 0.3: 5.0, 0.4: 4.0, 0.5: 1.0}, 10: {0.5: 3, 0.2: 2, 0.1: 1}}
    losses[20] = {0.1: 1.0, 0.2: 2.0}
    trials, seen = searched(lambda rate, steps: losses[steps][round(rate, 3)], (1, 2, 3, 4, 5))
    tried = [(round(trial.learning_rate, 3), trial.steps) for trial in trials]
    assert tried == [*((x, 5) for x in losses[5]), *((x, 10) for x in losses[10]),
                     (0.1, 20), (0.2, 20)]  # fmt: skip
    assert tuning.rank(trials)[0] == tuning.Trial(0.1, 20, 1.0)
    for optimizer, loop in seen:
        assert loop.validate_every == loop.checkpoint_every == loop.steps
        assert loop.average is loop.plateau is None
        assert optimizer.warmup_steps == loop.steps // 2  # the recipe's 30 are too many
    assert sum(loop.steps for _, loop in seen) < 1.5 * LOOP.steps


def test_what_diverges_ends_there():
    def loss(rate, steps):
        return float("inf") if rate > 0.25 else float("nan") if rate > 0.15 else 0.0

    trials, _ = searched(loss, (3, 2, 1, 4))
    assert [trial.loss for trial in trials] == [None, None, 0.0, None, 0.0]
    assert tuning.rank(trials)[0].learning_rate == pytest.approx(0.1)
    with pytest.raises(Diverged, match="all trials of 10 steps diverged; give smaller factors"):
        searched(loss, (3, 2, 4))


def test_rounds_that_are_equally_long_still_halve():
    """So few steps have no room for shorter trials."""
    few = LoopSettings(steps=4, validate_every=2)
    trials, _ = searched(lambda rate, steps: rate, (5, 4, 3, 2, 1), training=few)
    tried = [round(10 * trial.learning_rate) for trial in trials]
    assert tried == [5, 4, 3, 2, 1, 1, 2, 3, 1, 2]


def test_a_rate_without_a_warm_up_has_none_in_trials():
    _, seen = searched(lambda rate, steps: rate, (1, 2), OptimizerSettings())
    assert {optimizer.warmup_steps for optimizer, _ in seen} == {0}
