"""What a dry run says of accelerators that are not here."""

import os
import re
import subprocess
import sys

import jax
import pytest

from attnlab.bench import deviceless, model_programs, topology
from attnlab.devices import platforms
from attnlab.runs.units import duration, human
from attnlab.studies import plan
from attnlab.studies.study import Cell
from attnlab.training.parallel import ShardedJit
from tests.bench.test_deviceless import needs
from tests.daily import daily
from tests.several import ROOT
from tests.studies.test_study import Flags, Toy, Words, run_in
from tests.training.tiny import VOCAB


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The dry run of one model, whose targets' devices are the CPU."""
    (tmp_path / "words").write_text("some words")
    monkeypatch.setattr(topology, "require_compiler", lambda target: None)
    monkeypatch.setattr(topology, "environment", dict)
    monkeypatch.setattr(topology, "devices", lambda target: jax.devices("cpu")[:1] * target.devices)

    def dry_run(*flags):
        status, out, err = run_in(tmp_path, "--dry_run", "--widths=512", *flags)
        assert not (tmp_path / "run").exists()
        return status, out, err

    return dry_run


def planned(out):
    """The cells of the only line of the table, behind the model and its steps."""
    (line,) = re.findall(r"^\| 512 .*$", out, re.M)
    return [cell.strip() for cell in line.split("|")[4:-1]]


@pytest.mark.parametrize("parts", daily([1, 2], 2))
def test_a_step_is_compiled_counted_and_added_up(run, parts):
    rows, steps = 512, 10**7
    asked = f"--batch_size={rows}", f"--accumulate={parts}", f"--steps={steps}"
    status, out, err = run("--target=v5e", "--seeds=0", *asked)
    assert (status, err) == (0, "")
    training = Toy(Flags(batch_size=rows), Words("", "")).training(Cell({"width": 512}, 0))
    batch = {
        name: jax.ShapeDtypeStruct((rows, tokens), "int32")
        for name, tokens in (("source", 5), ("target", 6))
    }
    on_one = ShardedJit(jax.devices("cpu")[:1])
    need = model_programs.memory_of_step(training.task, training.optimizer, batch, on_one, parts)
    # A product forwards, two backwards; 6 tokens; v5e has 197 TFLOP/s.
    least = 3 * 2 * rows * 6 * 512 * VOCAB / 197e12
    taken = f"{duration(least)} products", f"{least * steps:.0f} s"
    assert planned(out) == ["v5e", human(need), *taken]


def test_what_has_no_room_is_said(run, monkeypatch):
    def refuse(*_):
        return deviceless.Program(1.0, refused=(2**34, 2**33), note="without cuDNN")

    monkeypatch.setattr(plan.deviceless, "compile_for", refuse)
    _, out, _ = run("--target=v5e")
    assert planned(out) == ["v5e", "needs 16.0 GiB of 8.00 GiB", "too large"]
    assert out.endswith("are not included\n512, v5e: without cuDNN\n")


def test_one_that_fails_is_a_line_and_the_others_are_compiled(run, monkeypatch):
    compiled = deviceless.compile_for

    def fails_on_a_tpu(lower, target, devices):
        if target.name == "v5e":
            raise ValueError("heads do not divide\nby 3")
        return compiled(lower, target, devices)

    monkeypatch.setattr(plan.deviceless, "compile_for", fails_on_a_tpu)
    status, out, _ = run("--target=v5e,h100")
    cells = [
        [x.strip() for x in line.split("|")[4:-1]] for line in re.findall("^. 512 .*", out, re.M)
    ]
    assert status == 0 and cells[0][:2] == ["v5e", "failed"] and re.search("[µm]s ", cells[1][2])
    assert "512, v5e: ValueError: heads do not divide by 3\n" in out


def test_what_is_not_counted_has_its_memory_alone(run, monkeypatch):
    def not_seen(*_):
        assert platforms.current().name == "cpu"
        raise NotImplementedError("a loop")

    monkeypatch.setattr(plan, "count", not_seen)
    _, out, _ = run("--target=v5e")
    assert planned(out)[1].endswith("iB") and len(planned(out)) == 2
    assert "512, v5e: its operations are not counted: NotImplementedError: a loop\n" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--target=v99", "--target=v99: no such device"),
        ("--target=v5e:2x2 --batch_size=6", "--batch_size=6: give a multiple of .* = 4 × 1"),
        ("--target=v5e:2x2 --mesh=data:1", "--mesh=data:1 is of 1 devices; --target=v5e:2x2 has 4"),
    ],
)
def test_targets_that_do_not_fit_end_in_one_line(run, flags, message):
    status, _, err = run(*flags.split())
    assert status == 2 and err.count("\n") == 1 and re.search(message, err)


@needs("libtpu")
@pytest.mark.slow
def test_an_experiment_on_a_tpu(tmp_path):
    asked = "--models=rnn_search --preset=dates --dry_run --target=v5e".split()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.translate", *asked, f"--run_dir={tmp_path / 'run'}"],
        cwd=ROOT, env=os.environ, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"\| +v5e \| +[\d.]+ MiB \| [\d.]+ µs products \| +0 s \|", done.stdout)
    assert "warning" not in done.stderr.lower()
