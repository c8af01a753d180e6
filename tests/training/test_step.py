import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.step import TrainState, make_train_step
from tests.training import tiny

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def numbers():
    """Of `devices_script`: losses, gradient norms and parameters of three steps."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.devices_script"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {name: np.array(x) for name, x in json.loads(done.stdout).items()}


@pytest.mark.parametrize("case", ["jit 2 1", "jit 4 1", "pmap 4 1", "jit 2 4", "pmap 2 2"])
def test_devices_pmap_and_accumulation_change_no_number(numbers, case):
    """A case is (jit or pmap, devices, accumulated parts); devices have unequal token counts."""
    np.testing.assert_allclose(numbers[case], numbers["jit 1 1"], rtol=1e-4, atol=1e-5)


def test_a_step_draws_a_dropout_of_its_own():
    model, optimizer = tiny.Tiny(dropout_rate=0.5), OptimizerSettings(learning_rate=0.0).build(3)
    batch = next(iter(tiny.batches()))
    step = jax.jit(make_train_step(model, optimizer))
    state = TrainState.create(model, optimizer, batch, seed=0)
    after, first = step(state, batch)
    _, second = step(after, batch)
    _, again = step(state, batch)
    assert first.sums.loss == again.sums.loss != second.sums.loss
    assert int(after.step) == 1


def test_accumulate_must_divide_the_batch():
    model, optimizer = tiny.Tiny(), OptimizerSettings().build(3)
    batch = next(iter(tiny.batches()))
    state = TrainState.create(model, optimizer, batch, seed=0)
    with pytest.raises(ValueError, match="accumulate must divide the rows .* got 3 and 8"):
        make_train_step(model, optimizer, accumulate=3)(state, batch)
