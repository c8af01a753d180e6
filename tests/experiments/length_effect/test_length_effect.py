"""The experiment on length: settings, its measure, a small run from end to end."""

import shlex

import jax
import pytest

from attnlab.data.tasks import Copy, Reversal
from experiments.length_effect import __main__ as experiment
from experiments.length_effect.__main__ import symbols_right
from experiments.length_effect.settings import MODELS, Settings
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


def test_parts_and_seeds_are_words_of_their_own():
    words = [
        Settings().words(7, 9, part, seed)[0]["source"] for seed in (0, 1) for part in range(3)
    ]
    assert len(set(words)) == 6
    assert isinstance(Settings().words(1, 2, 0, 0), Copy)
    assert isinstance(Settings(task="reversal").words(1, 2, 0, 0), Reversal)


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
    monkeypatch.setattr(experiment, "build", lambda name, settings: tiny.Tiny(10, 10))
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    tiny.finish(experiment, *flags, f"--output_dir={tmp_path}")
    (folder,) = tmp_path.iterdir()
    assert (folder / "by_length.svg").exists() and (folder / "curve.svg").exists()
    rows = tiny.rows_of(folder)
    assert [(r["cell"]["axes"]["model"], r["evaluated"]) for r in rows] == [
        ("rnn_encdec", "3"), ("rnn_encdec", "9"), ("rnn_search", "3"), ("rnn_search", "9"),
    ]  # fmt: skip
    for r in rows:
        assert r["details"] == {"examples": 11}
        assert 0 <= r["scores"]["words right"] <= r["scores"]["symbols right"] <= 1
    written = (folder / "report.md").read_text()
    (line,) = [x.strip() for x in written.splitlines() if x.startswith("    launch/local")]
    assert set(shlex.split(line)) == {"launch/local", "length_effect", *flags}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_no_sizes_of_their_own(name):
    """Both are told the same widths, and the model takes them all."""
    settings = Settings(embed_features=3, hidden_features=5, num_symbols=7)
    model = experiment.build(name, settings)
    assert (model.embed_features, model.maxout_features, model.hidden_features) == (3, 3, 5)
    assert model.source_vocab_size == model.target_vocab_size == 12
    assert getattr(model, "align_features", 5) == 5
    parameters = jax.eval_shape(model.init, jax.random.key(0), *(jax.numpy.ones((2, 3), int),) * 2)
    assert parameters
