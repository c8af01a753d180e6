"""What a dry run says of accelerators that are not here."""

import os
import re
import subprocess
import sys

import jax
import pytest

from attnlab import platforms
from attnlab.bench import deviceless, model_programs, topology
from attnlab.bench.operations import count
from attnlab.runs.units import duration, human
from attnlab.studies import plan
from attnlab.studies.study import Cell
from attnlab.training.parallel import ShardedJit
from tests.bench.test_deviceless import ROOT, needs
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


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_is_compiled_counted_and_added_up(run, parts):
    rows, steps = 4096, 10**7
    asked = f"--batch_size={rows}", f"--accumulate={parts}", f"--steps={steps}"
    status, out, err = run("--target=v5e", "--seeds=0", *asked)
    assert (status, err) == (0, "")
    training = Toy(Flags(batch_size=rows), Words("", "")).training(Cell({"width": 512}, 0))
    batch = {
        name: jax.ShapeDtypeStruct((rows // parts, tokens), "int32")
        for name, tokens in (("source", 5), ("target", 6))
    }
    on_one = ShardedJit(jax.devices("cpu")[:1])
    need = model_programs.memory_of_step(training.task, training.optimizer, batch, on_one)
    # A product forwards, two backwards; 6 tokens; v5e has 197 TFLOP/s.
    least = 3 * 2 * rows * 6 * 512 * VOCAB / 197e12
    taken = f"{duration(least)} products", f"{least * steps:.0f} s"
    assert planned(out) == ["v5e", human(need), *taken]


def test_what_has_no_room_is_said(run, monkeypatch):
    def refuse(*_):
        return deviceless.Program(1.0, refused=(2**34, 2**33), note="without cuDNN")

    monkeypatch.setattr(plan.deviceless, "compiled", refuse)
    _, out, _ = run("--target=v5e")
    assert planned(out) == ["v5e", "needs 16.0 GiB of 8.00 GiB", "too large"]
    assert out.endswith("tests not included\nv5e: without cuDNN\n")


def test_what_a_kernel_computes_is_counted_by_blocks(run, monkeypatch):
    def not_seen(*arguments):
        if platforms.current().name != "cpu":
            raise NotImplementedError("a kernel")
        return count(*arguments)

    monkeypatch.setattr(plan, "count", not_seen)
    _, out, _ = run("--target=v5e", "--batch_size=4096")
    assert planned(out)[2] == f"{duration(3 * 2 * 4096 * 6 * 512 * VOCAB / 197e12)} products"
    assert out.endswith("v5e: counted is attention by blocks, as the operations of its kernel are"
                        " not seen\n")  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--target=v5e --nodry_run", "--target=v5e: needs --dry_run"),
        ("--target=v5e --devices=1", "--devices=1: --target says how many; leave it out"),
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
    assert "WARNING" not in done.stderr
