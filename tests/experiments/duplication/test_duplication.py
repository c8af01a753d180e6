"""The study on duplication: a small run from end to end, and the setting nearest to the paper."""

import pytest

from attnlab.studies.study import Cell, Row
from experiments.duplication import __main__ as experiment
from experiments.duplication import report
from experiments.duplication.attention import EXACT, Hashing
from experiments.duplication.report import Accuracies
from tests.experiments import tiny

SMALL = {
    "words": "5",
    "chunk_size": 3,
    "models": "shared,lsh-1",
    "eval_rounds": "1",
    "steps": 4,
    "batch_size": 2,
    "seeds": "1",
    "examples": 16,
    "validate_every": 2,
}
PAPER, SOURCE = report.load()
BASE = Hashing()


def row(
    attention,
    evaluated,
    percent,
    *,
    hashing=BASE,
    other=None,
    seed=0,
    positions="sinusoid",
):
    axes = {"word": 31, "attention": attention, "hashing": str(hashing), "positions": positions}
    name = f"{evaluated}: {other}" if other else evaluated
    return Row(Cell(axes, seed), name, {"accuracy": percent / 100, "nll": 1.0}, 411_648, 500, 90.0)


SEEDS = (0, 1, 2)


def as_in_the_paper(change=None):
    return [
        row(name, column, x + (change or {}).get((name, column), 0.0), seed=seed)
        for seed in SEEDS
        for name, columns in PAPER.items()
        for column, x in columns.items()
    ]


@pytest.mark.slow
def test_a_small_run_from_end_to_end(tmp_path, monkeypatch):
    flags = ["--nogrid", *(f"--{name}={value}" for name, value in SMALL.items())]
    tiny.finish(experiment, *flags, f"--output_dir={tmp_path}")
    (folder,) = tmp_path.iterdir()
    places = [f"5-{x}-c=1-B=2-mask-union-sinusoid-seed1" for x in ("shared", "lsh-1")]
    files = ["report.md", "results.jsonl", "settings.json"]
    files += ["rounds.svg", "curve.svg"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *places])
    rows = tiny.rows_of(folder)
    assert [(r["cell"]["axes"]["attention"], r["evaluated"]) for r in rows] == [
        (name, column) for name in ("shared", "lsh-1") for column in (*EXACT, "lsh-1")
    ]
    for r in rows:
        assert 0 <= r["scores"]["accuracy"] <= 1 and r["scores"]["nll"] > 1
        assert (5 * 16 * r["scores"]["accuracy"]) % 1 == pytest.approx(0)  # of so many symbols
        assert r["step"] in (2, 4, 6, 8) and r["parameters"] == 395_264 + 256 * 12
    written = (folder / "report.md").read_text()
    for flag in flags:
        assert flag in written


def test_the_nearest_setting_comes_first():
    scaled = Hashing("1/sqrt(d)")
    rows = as_in_the_paper({("shared", "lsh-1"): 4.0})
    rows += [row("shared", column, x, hashing=scaled) for column, x in PAPER["shared"].items()]
    rows += [row("shared", f"lsh-{n}", 50.0, positions="normal") for n in (8, 4, 2, 1)]
    rows += [row("shared", f"lsh-{n}", 0.0, other=scaled) for n in (8, 4, 2, 1)]
    ranked = report.nearest(Accuracies(rows, BASE), PAPER)["shared"]
    assert ranked == [
        (pytest.approx(0.0), ("shared", str(scaled), "sinusoid"), str(scaled)),
        (pytest.approx(1.0), ("shared", str(BASE), "sinusoid"), str(BASE)),
        (pytest.approx((44.8 + 42.5 + 26.9 + 2.5) / 4), ("shared", str(BASE), "normal"), str(BASE)),
        (
            pytest.approx((94.8 + 92.5 + 76.9 + 52.5) / 4),
            ("shared", str(BASE), "sinusoid"),
            str(scaled),
        ),
    ]
