"""The experiment on length: settings, a small run from end to end, the report and its answer."""

import json
import shlex

import jax
import pytest

from attnlab.data.tasks import Copy, Reversal
from attnlab.runs import figure_files, palette
from attnlab.runs.errors import Invalid
from attnlab.runs.report import SoFar
from attnlab.training.curve import METRICS
from experiments.length_effect import __main__ as experiment
from experiments.length_effect import report, training
from experiments.length_effect.measure import Row, symbols_right
from experiments.length_effect.report import answer, figure
from experiments.length_effect.settings import Settings
from tests.experiments import tiny

SMALL = {
    "num_symbols": 5,
    "max_length": 7,
    "lengths": "3,9",
    "examples": 11,
    "steps": 4,
    "batch_size": 6,
    "validate_every": 2,
}


def row(model, length, share):
    return Row(model, length, 200, share, (1 + share) / 2, 12_345, 500, 90.0)


ROWS = [
    row(model, length, share)
    for model, shares in {"RNNencdec": (1.0, 0.5, 0.95), "RNNsearch": (1.0, 1.0, 0.9)}.items()
    for length, share in zip((5, 10, 15), shares, strict=True)
]


def markdown(rows, to_come=()):
    settings = Settings(task="reversal", hidden_features=77)
    command = "launch/local length_effect --task=reversal"
    return report.markdown(SoFar(rows, to_come, command, "| jax 1 |"), settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "sorting"}, "--task=sorting: no 'sorting'; valid: copy, reversal"),
        ({"num_symbols": 0}, "--num_symbols=0 is too small; give at least 1"),
        ({"steps": 0}, "--steps=0 is too small; give at least 1"),
        ({"seed": -1}, "--seed=-1 is too small; give at least 0"),
        ({"seed": 2**31}, "--seed=2147483648 is too large; give less than 2147483648"),
        ({"learning_rate": 0.0}, "--learning_rate=0 is too small; give more than 0"),
        ({"learning_rate": float("inf")}, "--learning_rate=inf: give a finite number"),
        (
            {"lengths": ()},
            "--lengths= is empty; give a value, such as 5,10,15,20,25,30,35,40,50,60",
        ),
        ({"lengths": (9, 5)}, "--lengths=9,5: give lengths that rise"),
        ({"lengths": (0, 5)}, "--lengths=0,5: 0 is too small; give at least 1"),
    ],
)
def test_refuses_bad_settings(changed, message):
    with pytest.raises(Invalid) as refused:
        Settings(**changed)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths=5,ten"], "--lengths=5,ten: give whole numbers"),
        (["--task=sorting"], "--task=sorting: no 'sorting'"),
        (["--no_such=1"], "Unknown command line flag"),
        (["more"], "'more' is not a flag"),
        (["--resume=nowhere"], "--output_dir and --resume exclude each other"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2_and_makes_nothing(tmp_path, flags, message):
    parent = tmp_path / "results"
    status, _, err = tiny.run(experiment, *flags, f"--output_dir={parent}")
    assert status == 2 and message in err and err.count("\n") == 1 and not parent.exists()


def test_parts_and_seeds_are_words_of_their_own():
    words = [
        settings.words(7, 9, part)[0]["source"]
        for settings in (Settings(), Settings(seed=1))
        for part in range(3)
    ]
    assert len(set(words)) == 6
    assert isinstance(Settings().words(1, 2, 0), Copy)
    assert isinstance(Settings(task="reversal").words(1, 2, 0), Reversal)


@pytest.mark.parametrize(
    ("found", "wanted", "share"),
    [
        ("1 2 3 4", "1 2 3 4", 1.0),
        ("1 2 4", "1 2 3 4", 0.75),  # all that follows is still right
        ("1 2 9 3 4", "1 2 3 4", 0.75),
        ("4 3 2 1", "1 2 3 4", 0.0),
        ("", "1 2 3 4", 0.0),
        ("9 9 9 9 9 9 9 9 9", "1 2", 0.0),  # not below zero
    ],
)
def test_symbols_right_counts_edits(found, wanted, share):
    assert symbols_right(found.split(), wanted.split()) == pytest.approx(share, abs=1e-9)


@pytest.mark.slow
def test_a_small_run_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "build", lambda name, settings: tiny.Tiny(10, 10))
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    status, out, err = tiny.run(experiment, *flags, f"--output_dir={tmp_path}")
    assert (status, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    names = {"by_length.png", "by_length.svg", "report.md", "results.jsonl", "settings.json"}
    assert {path.name for path in folder.iterdir()} == {*names, "rnn_encdec", "rnn_search"}
    text = (folder / "results.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(r["model"], r["length"]) for r in rows] == [
        ("RNNencdec", 3), ("RNNencdec", 9), ("RNNsearch", 3), ("RNNsearch", 9),
    ]  # fmt: skip
    for r in rows:
        assert r["examples"] == 11 and 0 <= r["exact_match"] <= r["symbols_right"] <= 1
        assert r["flags"]["lengths"] == [3, 9] and "jax" in r["environment"]["versions"]
    written = (folder / "report.md").read_text()
    (line,) = [x.strip() for x in written.splitlines() if x.startswith("    launch/local")]
    assert set(shlex.split(line)) == {"launch/local", "length_effect", *flags}

    curves = [(folder / name / METRICS).read_bytes() for name in ("rnn_encdec", "rnn_search")]
    (folder / "report.md").unlink()
    monkeypatch.setattr(figure_files, "save", tiny.save_nothing)
    status, out, _ = tiny.run(experiment, f"--resume={folder}")
    assert status == 0 and "0 of 2 models" in out and (folder / "report.md").read_text() == written
    assert [
        (folder / name / METRICS).read_bytes() for name in ("rnn_encdec", "rnn_search")
    ] == curves
    status, _, err = tiny.run(experiment, f"--resume={folder}", "--task=reversal")
    assert status == 2 and "--task=reversal differs from copy in" in err

    # As a kill leaves it between two rows of a model: that model is tested again, not trained.
    (folder / "results.jsonl").write_text("".join(text.splitlines(keepends=True)[:3]))
    status, out, _ = tiny.run(experiment, f"--resume={folder}")
    assert status == 0 and "1 of 2 models" in out and "step 4/4" not in out
    assert len((folder / "results.jsonl").read_text().splitlines()) == 3 + 2


def test_the_answer_is_computed_from_the_rows():
    assert answer(ROWS) == (
        "RNNencdec writes 90% of words without an error up to 5 symbols; RNNsearch writes 90% of "
        "words without an error up to 15 symbols, the longest that were tested."
    )
    assert "RNNencdec writes 90% of words without an error of no length" in answer(ROWS[1:3])


def test_the_report_leaves_the_papers_column_blank():
    text = markdown(ROWS)
    header, _, *body = [line for line in text.splitlines() if line.startswith("|")][:5]
    assert header.split("|")[-2].strip() == "paper"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body]
    assert cells[1] == ["10", "50.0%", "100.0%", "75.0%", "100.0%", ""]
    for said in ("written backwards", "77 numbers", "prints no numbers", "12,345", "| jax 1 |"):
        assert said in text
    assert "Not done yet" not in text


def test_a_run_that_is_cut_short_reports_what_there_is():
    text = markdown(ROWS[:4], to_come=["RNNsearch"])
    assert "Not done yet: RNNsearch." in text
    lines = [line for line in text.splitlines() if line.startswith(("| 5 ", "| 10 "))]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells == [
        ["5", "100.0%", "100.0%", "100.0%", "100.0%", ""],
        ["10", "50.0%", "", "75.0%", "", ""],
    ]


def test_the_figure_shades_what_is_longer_than_in_training():
    for longest, shaded in ((10, True), (15, False)):
        drawn = figure(ROWS, longest=longest)
        left, right = drawn.axes
        assert [line.get_label() for line in left.lines] == ["RNNencdec", "RNNsearch"]
        colors = [line.get_color() for line in left.lines]  # those of every other report
        assert colors == [palette.MODELS[name][0] for name in ("rnn_encdec", "rnn_search")]
        assert list(left.lines[0].get_ydata()) == [1.0, 0.5, 0.95]
        assert list(right.lines[1].get_xdata()) == [5, 10, 15]
        assert bool(left.patches) == bool(right.patches) == shaded


@pytest.mark.parametrize("name", training.MODELS)
def test_models_have_no_sizes_of_their_own(name):
    """Both are told the same widths, and the model takes them all."""
    settings = Settings(embed_features=3, hidden_features=5, num_symbols=7)
    model = training.task(name, settings).model
    assert (model.embed_features, model.maxout_features, model.hidden_features) == (3, 3, 5)
    assert model.source_vocab_size == model.target_vocab_size == 12
    assert getattr(model, "align_features", 5) == 5
    parameters = jax.eval_shape(model.init, jax.random.key(0), *(jax.numpy.ones((2, 3), int),) * 2)
    assert parameters
