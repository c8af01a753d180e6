import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from attnlab import routes
from attnlab.models.transformer import Transformer, TransformerConfig, TransformerLM
from attnlab.runs.errors import Invalid
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.curve import METRICS, Diverged, is_plateau, read_metrics
from attnlab.training.decode import greedy
from attnlab.training.loop import CHECKPOINTS, LoopSettings, Task, train
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from tests.training import tiny
from tests.training.tiny import curve_of
from tests.trees import assert_close


def run(
    folder,
    *,
    model=None,
    inputs=None,
    steps=12,
    rate=0.01,
    on_row=None,
    devices=2,
    parallel="jit",
    mesh=None,
    configuration=None,
    task=None,
    say=lambda line: None,
    **settings,
):
    folder.mkdir(exist_ok=True)
    settings = {"log_every": 3, "validate_every": 6, "checkpoint_every": 4} | settings
    inputs = inputs or {"source": "source", "target": "target"}

    def chosen(batch):
        return {name: batch[of] for name, of in inputs.items()}

    task = Task(
        model or tiny.Tiny(dropout_rate=0.2),
        TokenCrossEntropy(),
        tiny.batches().map(chosen),
        lambda: map(chosen, tiny.validation()),
        configuration or {},
        **task or {},
    )
    return train(
        task,
        settings=LoopSettings(steps=steps, **settings),
        optimizer=OptimizerSettings(learning_rate=rate, warmup_steps=4, clip_norm=1.0),
        parallel=parallel_over(parallel, jax.devices()[:devices], mesh),
        folder=folder,
        on_row=on_row,
        say=say,
    )


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


@pytest.mark.slow
def test_what_is_watched_stands_in_the_validations_rows(tmp_path):
    def watch(variables):
        return {"largest": max(float(np.abs(x).max()) for x in jax.tree.leaves(variables))}

    found = run(tmp_path / "watched", task={"watch": watch})
    rows = read_metrics(tmp_path / "watched")
    watched = [row["largest"] for row in rows if row["kind"] == "validation"]
    assert len(watched) == 2 and found.step == 12
    assert watched[-1] == watch(found.variables)["largest"] != watched[0]
    assert not any("largest" in row for row in rows if row["kind"] == "training")


def test_the_curve_has_every_row(whole_run):
    folder, trained = whole_run
    rows = read_metrics(folder)
    assert [(r["kind"], r["step"]) for r in rows] == [
        ("training", 3), ("training", 6), ("validation", 6),
        ("training", 9), ("training", 12), ("validation", 12),
    ]  # fmt: skip
    assert trained.steps == trained.step == 12 and trained.stopped_by is None
    assert rows[0]["tokens"] == 3 * 8 * 6 and rows[0]["learning_rate"] == pytest.approx(
        3 / 4 * 0.01
    )
    losses = [r["nll"] for r in rows if r["kind"] == "validation"]
    assert losses[1] < losses[0]


def run_and_stop(folder, after_rows, **options):
    """SIGTERM when so many rows are written."""
    rows = []

    def ask_to_stop(row):
        rows.append(row)
        if len(rows) == after_rows:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = run(folder, on_row=ask_to_stop, **options)
    assert stopped.stopped_by == signal.SIGTERM
    return stopped.steps


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, whole_run):
    assert run_and_stop(tmp_path, after_rows=1) == 4  # in the middle of a row
    second = run(tmp_path)
    folder, whole = whole_run
    assert curve_of(tmp_path) == curve_of(folder)
    assert same(second.params, whole.params)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_another_number_of_devices(tmp_path, whole_run):
    assert run_and_stop(tmp_path, after_rows=3) == 7
    second = run(tmp_path, devices=1, parallel="pmap")
    _, whole = whole_run
    # Under pmap dropout is another, so the last steps differ; the parameters hardly.
    assert_close(second.params, whole.params, atol=0.1)


def test_a_plateau_is_judged_by_the_best_loss():
    """A last validation that is worse by chance hides no fall, and a jump back is none."""
    falls = {100 * i: 2.0 - 0.1 * i for i in range(1, 11)}
    assert not is_plateau(falls | {1000: 1.3}, fall=0.05)
    assert is_plateau(dict.fromkeys(falls, 1.0) | {700: 9.0, 800: 9.0}, fall=0.05)


def test_a_plateau_ends_a_training_also_one_that_goes_on(tmp_path):
    ended = {"steps": 40, "log_every": 5, "validate_every": 2, "plateau": 0.9}
    whole = run(tmp_path / "whole", **ended)
    assert (whole.steps, whole.plateau) == (12, 12)  # two validations behind step 9.6
    assert run_and_stop(tmp_path / "stopped", after_rows=5, **ended) == 9
    resumed = run(tmp_path / "stopped", **ended)
    assert same(resumed.params, whole.params) and resumed.plateau == 12
    rows = curve_of(tmp_path / "whole")
    assert curve_of(tmp_path / "stopped") == rows
    assert sum(row.get("tokens", 0) for row in rows) == 12 * 8 * 6  # behind step 10 too
    again = run(tmp_path / "whole", **ended)
    assert curve_of(tmp_path / "whole") == rows and (again.steps, again.plateau) == (12, 12)


def test_what_still_falls_has_all_steps(tmp_path):
    trained = run(tmp_path, steps=13, validate_every=2, plateau=1e-6)
    assert (trained.steps, trained.plateau) == (13, None)


def test_the_last_checkpoints_are_averaged_also_those_of_before_an_interruption(tmp_path):
    whole = run(tmp_path / "whole", average=3)
    assert run_and_stop(tmp_path / "stopped", after_rows=4, average=3) == 10
    resumed = run(tmp_path / "stopped", average=3)
    assert same(resumed.params, whole.params) and resumed.validation == whole.validation
    ones = []
    for step in (6, 8, 12):  # each alone is a training that ended there
        copied = tmp_path / f"from {step}" / CHECKPOINTS / str(step)
        shutil.copytree(tmp_path / "stopped" / CHECKPOINTS / str(step), copied)
        ones.append(run(tmp_path / f"from {step}", steps=step).params)
    assert not same(ones[-1], whole.params)
    mean = jax.tree.map(lambda *x: np.mean(np.float64(x), 0), *ones)
    assert_close(mean, whole.params, rtol=1e-6, atol=1e-8)
    task = {"start": lambda drawn: whole.params}
    begun = run(tmp_path / "more", steps=1, rate=0.0, task=task)  # starts where that one ended
    assert same(begun.params, whole.params)
    assert whole.validation == begun.validation and whole.step == 12


def test_the_last_checkpoint_alone_is_no_mean_and_the_best_is_in_the_curve(tmp_path, whole_run):
    folder, whole = whole_run
    last = run(shutil.copytree(folder, tmp_path / "copy"), average=1)
    assert same(last.params, whole.params)  # here the last is the best
    (*_, row) = curve_of(folder)
    assert row == {"kind": "validation", "step": 12} | whole.validation
    assert last.validation["nll"] == pytest.approx(whole.validation["nll"])


def test_checkpoints_that_were_not_kept_are_missed(whole_run):
    with pytest.raises(Invalid, match="last 4 checkpoints needs those of step 4, 6, which"):
        run(whole_run[0], average=4)


@pytest.mark.slow
def test_a_run_goes_on_after_a_checkpoint_even_if_later_rows_were_written(tmp_path, whole_run):
    """As after kill −9: the curve has rows that no checkpoint knows of, one of them cut off."""
    run(tmp_path, steps=4)
    with open(tmp_path / METRICS, "a") as file:
        file.write(json.dumps({"kind": "training", "step": 9, "loss": 1.0}) + "\n")
        file.write('{"kind": "training", "st')
    # The 4-step run logged its last step, which a longer one does not.
    kept = [row for row in read_metrics(tmp_path) if row["step"] != 4]
    (tmp_path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in kept))
    run(tmp_path)
    assert [r["step"] for r in curve_of(tmp_path)] == [3, 6, 6, 9, 12, 12]


def test_a_curve_that_is_gone_is_said_and_the_best_validated_again(tmp_path, whole_run):
    folder, whole = whole_run
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / METRICS).write_text('{"kind": "validation", "step": 6, "nll": 9.0}\n')
    said = []
    again = run(tmp_path / "copy", say=said.append)
    assert again.validation == pytest.approx(whole.validation, rel=1e-5)
    assert [line for line in said if "rows until step 12 are gone, 1 validations" in line]
    for line in ("{}", "[]", "{"):
        (tmp_path / "copy" / METRICS).write_text(f"\n{line}\n")
        with pytest.raises(Invalid, match="metrics.jsonl, line 2: not a row of a curve; delete"):
            run(tmp_path / "copy")


def test_the_end_is_not_run_twice(whole_run):
    folder, whole = whole_run
    before = (folder / METRICS).read_bytes()
    again = run(folder)
    assert same(again.params, whole.params) and (folder / METRICS).read_bytes() == before


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    run(tmp_path, steps=4)
    with pytest.raises(Diverged, match=r"(loss|gradient norm) is (nan|inf) at step \d+"):
        run(tmp_path, rate=1e38)
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["4"]


CONFIG = TransformerConfig(tiny.VOCAB, num_layers=1, width=6, hidden=5, num_heads=2)
CENTRED = CONFIG.attention(
    routes.LSH(1, num_buckets=2, centering="learned", implementation="dense")
)


@pytest.mark.slow
def test_a_learned_center_is_trained_and_kept(tmp_path):
    options = {
        "model": TransformerLM(CONFIG, attention=CENTRED),
        "inputs": {"tokens": "target"},
        "steps": 3,
        "checkpoint_every": 2,
        "task": {"streams": ("dropout", "hash")},
    }
    whole = run(tmp_path / "whole", **options)
    (center,) = jax.tree.leaves(whole.collections)
    assert center.shape == (2, 3) and center.any(axis=-1).all()
    assert set(whole.variables) == {"params", *whole.collections}
    kept = tmp_path / "whole" / CHECKPOINTS / "2"
    shutil.copytree(kept, tmp_path / "from 2" / CHECKPOINTS / "2")
    assert same(run(tmp_path / "from 2", **options).variables, whole.variables)


@pytest.mark.slow
def test_a_search_uses_the_learned_center():
    model, source = Transformer(CONFIG, attention=CENTRED), np.full((2, 5), 4)
    variables = jax.eval_shape(model.init, jax.random.key(0), source, source)

    def search(variables):
        return greedy(model, variables, source, max_length=4)

    jax.eval_shape(search, variables)
    with pytest.raises(ValueError, match="got variables without it"):
        jax.eval_shape(search, {"params": variables["params"]})


@pytest.mark.slow
def test_a_divided_state_is_restored_on_another_mesh(tmp_path, monkeypatch):
    model = tiny.Tiny(dropout_rate=0.2, width=8)
    plain = run(tmp_path / "whole", model=model)
    shards, at_ends, restore = [], [], Checkpoints.restore

    def at_the_end(*arguments):
        found = restore(*arguments)
        parts = {x.addressable_shards[0].data.shape for x in jax.tree.leaves(found.state["params"])}
        at_ends.append((tiny.VOCAB, 8) not in parts and (tiny.VOCAB, 4) in parts)
        return found

    def look(row):
        if row["kind"] == "training":
            live = [x for x in jax.live_arrays() if x.shape == (tiny.VOCAB, 8)]
            shards.append({x.addressable_shards[0].data.shape for x in live})

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "restore", at_the_end)
        run(tmp_path / "s", model=model, steps=6, mesh={"data": 2}, on_row=look)
    assert at_ends == [True]
    assert (tiny.VOCAB, 4) in shards[-1]
    shutil.rmtree(tmp_path / "s" / CHECKPOINTS / "6")
    for mesh in ({"model": 2}, {"sequence": 2}):
        other = tmp_path / "-".join(mesh)
        shutil.copytree(tmp_path / "s", other)
        divided = run(other, model=model, mesh=mesh)
        assert divided.steps == 12
        assert_close(divided.params, plain.params, rtol=1e-4, atol=1e-5)


def test_the_folder_of_another_training_is_refused(whole_run):
    with pytest.raises(Invalid, match="width is null there and 3 here"):
        run(whole_run[0], configuration={"width": 3})


def test_settings_say_after_which_steps_there_is_a_checkpoint():
    found = LoopSettings(steps=12, validate_every=6, checkpoint_every=5, average=3)
    assert found.averaged == (6, 10, 12)
    assert LoopSettings(steps=7, validate_every=3).validates(7)
