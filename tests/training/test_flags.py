"""The flags of every training, and a training as a part of a run."""

import dataclasses
import signal
import sys
import types

import jax
import pytest

from attnlab.runs import processes, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import Terminated
from attnlab.training import run as training_run
from attnlab.training.flags import TrainFlags
from attnlab.training.loop import Trained
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Pmap


def test_checkpoints_come_with_validations_unless_asked_for():
    given = {"steps": 7, "validate_every": 3, "seed": 5}
    loop = TrainFlags(log_every=2, accumulate=4).loop(**given)
    assert (loop.steps, loop.validate_every, loop.checkpoint_every, loop.seed) == (7, 3, 3, 5)
    assert (loop.log_every, loop.accumulate) == (2, 4)
    assert TrainFlags(checkpoint_every=1).loop(**given).checkpoint_every == 1


def test_a_plateau_is_refused_where_validations_are_too_few_to_see_one():
    seen = TrainFlags(steps=11, validate_every=2, plateau=0.01)
    seen.check_named(())
    assert seen.loop(seed=0).plateau == 0.01
    message = "--plateau=0.01: needs six validations, .*; 10 steps have 5; lower"
    with pytest.raises(Invalid, match=message):
        dataclasses.replace(seen, steps=10).check_named(())
    with pytest.raises(Invalid, match=message):  # a recipe's or a share of the steps
        TrainFlags(plateau=0.01).loop(seed=0, steps=10, validate_every=2)


def test_all_devices_unless_some_are_asked_for():
    assert TrainFlags().over_devices([6]).mesh.size == len(jax.devices()) == 2
    one = TrainFlags(devices=1, parallel="pmap", accumulate=5).over_devices([5, 10])
    assert isinstance(one, Pmap) and one.mesh.size == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (TrainFlags(devices=9), "--devices=9: there are 2; give fewer"),
        (TrainFlags(mesh="data:3,model:2"), "--mesh=data:3,model:2: there are 2; give fewer"),
        (TrainFlags(mesh="data:2", accumulate=3), "--batch_size=8: give a multiple of devices"),
        (TrainFlags(mesh="batch:2"), "--mesh=batch:2: give axes and their sizes, such as data:4,"),
        (TrainFlags(mesh="data:0"), "--mesh=data:0: give axes and their sizes, such as data:4,"),
        (TrainFlags(accumulate=3), "--batch_size=8: give a multiple of devices × accumulate = 2 ×"),
    ],
)
def test_refuses_devices_that_do_not_fit(flags, message):
    assert len(jax.devices()) == 2  # and no more can be made now
    with pytest.raises(Invalid) as refused:
        flags.over_devices([12, 8])
    assert str(refused.value).startswith(message)


def run_in(folder, **options):
    return training_run.run_training(
        None,
        settings=TrainFlags().loop(steps=1, validate_every=1, seed=0),
        optimizer=OptimizerSettings(),
        parallel=None,
        folder=folder,
        **options,
    )


@pytest.mark.parametrize(
    ("stopped_by", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (None, None)],
)
def test_the_signal_that_a_training_answered_ends_the_run(tmp_path, monkeypatch, stopped_by, error):
    trained = Trained({}, {}, step=1, steps=1, seconds=0.5, stopped_by=stopped_by)
    monkeypatch.setattr(training_run, "train", lambda *_, **__: trained)
    if error is None:
        assert run_in(tmp_path / "new") is trained
    else:
        with pytest.raises(KeyboardInterrupt) as ended:
            run_in(tmp_path / "new")
        assert type(ended.value) is error
    assert (tmp_path / "new").is_dir()


class Writer:
    """Stands for that of TensorBoard's package, which need not be there."""

    def __init__(self, folder):
        self.folder, self.added, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.added.append((name, value, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


def test_tensorboard_gets_every_number_of_a_row(monkeypatch, tmp_path):
    def train(*_, on_row, **__):
        on_row({"kind": "training", "step": 3, "loss": 0.5, "seconds": 2})
        assert not Writer.last.closed
        return Trained({}, {}, step=3, steps=3, seconds=0.5, stopped_by=None)

    package = types.SimpleNamespace(Writer=Writer)
    monkeypatch.setitem(sys.modules, "tensorboard", package)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", package)
    monkeypatch.setattr(training_run, "train", train)
    run_in(tmp_path, tensorboard=True)
    assert Writer.last.folder == str(tmp_path / "tensorboard") and Writer.last.closed
    assert Writer.last.added == [("training/loss", 0.5, 3), ("training/seconds", 2, 3)]


@pytest.mark.parametrize(
    ("owners", "asked", "message"),
    [
        ([0, 0, 1], {}, "the processes have 2, 1 devices; start them with as many each"),
        ([0, 1], {"devices": 1}, "--devices=1: the 2 processes have 2 devices; use them all"),
        ([0, 0, 1, 1], {"mesh": "data:2"}, "--mesh=data:2: the 2 processes have 4 devices"),
    ],
)
def test_a_topology_that_does_not_match_the_processes_is_refused(
    owners, asked, message, monkeypatch
):
    there = [types.SimpleNamespace(process_index=i) for i in owners]
    monkeypatch.setattr(provenance, "devices", lambda *, local: there)
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(Invalid, match=message):
        TrainFlags(**asked).over_devices([4])
