"""A small run of `language_model` from end to end, killed and resumed, and a sample of it."""

import dataclasses
import shlex
import shutil

import pytest

from attnlab.runs import figure_files
from attnlab.runs.flags import flag_of
from experiments.language_model import __main__ as experiment
from experiments.language_model import sample
from experiments.language_model.report import NO_ATTENTION
from experiments.language_model.settings import Settings
from tests.experiments import tiny
from tests.training.tiny import curve_of

SMALL = {
    "models": "exact,lsh-2",
    "lengths": "16",
    "seeds": "3",
    "steps": 4,
    "batch_tokens": 64,
    "warmup_steps": 2,
    "validate_every": 2,
    "num_layers": 1,
    "head_dim": 6,
    "hidden": 11,
    "chunk_size": 8,
    "eval_rounds": "1,2",
    "copy_models": "lsh-1",
    "copy_distance": 40,
    "copy_steps": 2,
}
NEEDS = {field.name: flag_of(field).needs for field in dataclasses.fields(Settings)}


def written(path):
    path.write_bytes(b"to be, or not to be: that is the question. " * 23)
    return path


@pytest.fixture
def text(tmp_path):
    return written(tmp_path / "text")


def flags(text, **changed):
    given = {"input": text} | SMALL | changed
    for task in {"text", "copy"} - set(given.get("tasks", "text,copy").split(",")):
        # Flags of a task that is left out are refused.
        given = {name: x for name, x in given.items() if f"tasks={task}" not in NEEDS[name]}
    return [f"--{name}={value}" for name, value in given.items()]


@pytest.mark.slow
def test_a_small_run_from_end_to_end(tmp_path, text, no_figures):
    tiny.finish(experiment, *flags(text), f"--output_dir={tmp_path / 'out'}")
    (folder,) = (tmp_path / "out").iterdir()
    rows = tiny.rows_of(folder)
    scores = {(*r["cell"]["axes"].values(), r["evaluated"]): [*r["scores"].values()] for r in rows}
    assert set(scores) == {
        ("text", 16, "exact", ""), ("text", 16, "exact", NO_ATTENTION), ("text", 16, "lsh-2", ""),
        ("text", 16, "lsh-2", "lsh-1"), ("text", 16, "lsh-2", NO_ATTENTION),
        ("copy", 40, "lsh-1", ""), ("copy", 40, "lsh-1", NO_ATTENTION),
    }  # fmt: skip
    bits = [score for key, (score,) in scores.items() if key[0] == "text"]
    assert len(set(bits)) == 5 and all(3 < x < 12 for x in bits)
    assert all(0 <= score <= 1 for key, (score,) in scores.items() if key[0] == "copy")
    costs = [r["details"] for r in rows if "memory" in r["details"]]
    assert len(costs) == 2
    assert all(x["memory"] > 1000 and x["seconds_per_token"] > 0 for x in costs)
    assert {x["tokens"] for x in costs} == {64}
    (seen,) = [r["details"] for r in rows if "masses" in r["details"]]
    validations = [r for r in curve_of(folder / "text-16-lsh-2-seed3") if r["kind"] == "validation"]
    assert seen["steps"] == [2, 4] and seen["masses"] == [r["mass"] for r in validations]
    assert 0 < seen["pairs"][0] < seen["masses"][0] + 0.2 <= 1.2
    written = (folder / "report.md").read_text()
    (line,) = [x.strip() for x in written.splitlines() if x.startswith("    launch/local")]
    assert set(shlex.split(line)) == {"launch/local", "language_model", *flags(text)}

    text.write_bytes(text.read_bytes()[::-1])
    status, _, err = tiny.run(experiment, f"--resume={folder}")
    assert status == 2 and "is about other data than" in err and err.count("\n") == 1


def train(parent):
    """The status of a training of lsh-2 over the text in a folder."""
    of_lsh = {"models": "lsh-2", "tasks": "text", "validate_every": 4, "log_every": 1}
    text = written(parent / "text")
    status, *_ = tiny.run(experiment, *flags(text, **of_lsh), f"--output_dir={parent / 'out'}")
    return status


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a training of lsh-2 that nothing interrupted."""
    parent = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_files, "save", tiny.save_nothing)
        assert train(parent) == 0
    (folder,) = (parent / "out").iterdir()
    return folder


def test_a_sample_of_no_run_names_its_own_flag(tmp_path):
    status, _, err = tiny.run(sample, f"--run={tmp_path}", "--model=exact")
    assert status == 2 and f"--run={tmp_path}: no settings.json there; give" in err


@pytest.mark.slow
def test_a_sample_of_a_trained_model(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "copy")

    def sampled(*given):
        given = ("--model=lsh-2", "--trained_seed=3", *given)
        return tiny.run(sample, f"--run={folder}", *given)

    status, first, err = sampled("--prompt=to be", "--tokens=9")
    assert (status, err) == (0, "") and first.startswith("to be") and len(first) > 6
    assert sampled("--prompt=to be", "--tokens=9")[1] == first
    assert sampled("--prompt=to be", "--tokens=9", "--seed=1")[1] != first
    likeliest = [sampled("--tokens=9", "--top_k=1", f"--seed={seed}")[1] for seed in (1, 2)]
    assert likeliest[0] == likeliest[1]
    for given, message in (
        (
            ["--model=exact"],
            "has no checkpoints of text, 16, exact, seed 3; it has text-16-lsh-2-seed3",
        ),
        (["--model=lsh"], "--model=lsh: no attention 'lsh'; valid"),
        (["--tokens=16"], "--tokens=16: with the prompt's 1 they are more than the 16"),
        (["--run="], "--run= is empty; give"),
    ):
        status, _, err = sampled(*given)
        assert status == 2 and message in err and err.count("\n") == 1
    (folder / "text-16-lsh-2-seed3").rename(folder / "text-16-lsh-1-seed3")
    status, _, err = sampled("--model=lsh-1", "--tokens=9")
    assert status == 2 and 'cell.model is "lsh-2" there and "lsh-1" here' in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_sample_of_a_model_whose_learning_rate_was_found(tmp_path, text):
    made = flags(text, tasks="text", models="lsh-2", tune="1,3")
    tiny.finish(experiment, *made, f"--run_dir={tmp_path / 'run'}")
    given = "--model=lsh-2", "--trained_seed=3", "--prompt=to be", "--tokens=9"
    assert tiny.finish(sample, f"--run={tmp_path / 'run'}", *given).startswith("to be")
