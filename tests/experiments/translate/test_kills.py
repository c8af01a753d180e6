"""A training that is killed at random moments, and resumed, computes what it would have."""

import itertools
import random
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from attnlab.training.checkpoint import Checkpoints
from attnlab.training.curve import METRICS
from attnlab.training.loop import CHECKPOINTS
from tests.several import Together, run
from tests.training.tiny import curve_of

EARLY = 0.25  # share of the kills that come while the process starts, restores and compiles
KILLS = 5
TRANSLATE = (
    "tests.experiments.tiny_translate", "--models=transformer", "--steps=500",
    "--validate_every=90", "--checkpoint_every=10", "--log_every=5", "--batch_size=8",
)  # fmt: skip


@pytest.mark.slow
def test_nothing_differs_after_kills(tmp_path):
    """Kill −9; that one of several is struck is in test_several_processes.py."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options: dict[str, Any] = dict(quick=True, slurm=True)  # whose one task is alone
    assert run(1, *TRANSLATE, f"--run_dir={whole}", **options)[0].status == 0
    draw = random.Random(KILLS)
    for kill in range(KILLS):
        with Together(1, *TRANSLATE, f"--run_dir={killed}", **options) as together:
            (first,) = together.processes
            if draw.random() < EARLY:
                time.sleep(draw.uniform(1, 6))
            else:
                lines = (line for line in first.stdout if line.startswith("step "))
                assert list(itertools.islice(lines, draw.randint(1, 12))), first.stderr.read()
                time.sleep(draw.uniform(0, 0.3))
            assert first.poll() is None, f"it ended before kill {kill}: {first.stderr.read()}"
            first.kill()
    (again,) = run(1, *TRANSLATE, f"--run_dir={killed}", **options)
    assert again.status == 0 and "going on after step " in again.out
    assert difference(whole / "transformer-seed0", killed / "transformer-seed0") is None


def difference(one: Path, other: Path) -> str | None:
    """What differs between two finished trainings, by their folders; None if nothing does.

    All rows of the curves are compared, except times, and every number of the last checkpoints.
    """
    curves = [curve_of(folder) for folder in (one, other)]
    if curves[0] != curves[1]:
        return f"curves: {[rows for rows in zip(*curves, strict=False) if rows[0] != rows[1]]}"
    state, other_state = (_last_state(folder / CHECKPOINTS) for folder in (one, other))
    for name in sorted(state.keys() | other_state.keys()):
        if not np.array_equal(state.get(name, np.nan), other_state.get(name, np.nan)):
            return f"{name} in the last checkpoints"
    return None


def _last_state(folder: Path) -> dict[str, np.ndarray]:
    # Arrays are restored to one device, whichever devices they were saved from.
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with ocp.training.Checkpointer(folder.resolve()) as checkpoints:
        saved = checkpoints.checkpointables_metadata(None).metadata["state"]
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), saved
        )
        state = checkpoints.load_checkpointables(None, {"state": wanted})["state"]
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in paths}


CURVE = '{"kind": "training", "step": 2, "loss": 0.5, "seconds": 1.5}\n'
STATE = {"params": {"kernel": jnp.arange(6.0)}, "step": jnp.int32(2)}


def write(folder, curve=CURVE, state=STATE):
    folder.mkdir()
    (folder / METRICS).write_text(curve)
    with Checkpoints(folder / CHECKPOINTS, {}) as checkpoints:
        checkpoints.save(2, state, data={}, meter={}, wait=True)
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"curve": CURVE.replace("1.5", "7.5")}, None),
        ({"curve": CURVE.replace("0.5", "0.25")}, "0.25"),
        (
            {"state": STATE | {"params": {"kernel": jnp.array([0, 1, 2, 3, 4, 5.0000005])}}},
            "kernel",
        ),
        ({"state": STATE | {"key": jnp.arange(2)}}, "key"),
    ],
)
def test_what_differs_between_two_trainings_is_found(tmp_path, changed, said):
    pair = write(tmp_path / "one"), write(tmp_path / "other", **changed)
    for one, other in (pair, pair[::-1]):
        found = difference(one, other)
        assert (found is None) if said is None else (found and said in found)
