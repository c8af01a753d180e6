"""The experiment on duplication: a small run from end to end, verdict, report and figure."""

import json
import shutil

import pytest

from attnlab.runs import figure_files
from attnlab.runs.report import SoFar
from attnlab.training.curve import read_metrics
from experiments.duplication import __main__ as experiment
from experiments.duplication import report, verdict
from experiments.duplication.attention import EXACT, Hashing
from experiments.duplication.cells import Cells
from experiments.duplication.figure import figure
from experiments.duplication.measure import Row
from experiments.duplication.plan import trainings
from experiments.duplication.settings import Settings
from experiments.tables.mapping import TABLES
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
    word=31,
    positions="sinusoid",
):
    return Row(
        word, attention, hashing, seed, evaluated, other or hashing, percent / 100, 1.0, 3968, 8,
        411_648, 500, 90.0, positions,
    )  # fmt: skip


SEEDS = (0, 1, 2)


def as_in_the_paper(change=None):
    return [
        row(name, column, x + (change or {}).get((name, column), 0.0), seed=seed)
        for seed in SEEDS
        for name, columns in PAPER.items()
        for column, x in columns.items()
    ]


def test_the_papers_table():
    assert PAPER["shared"] == {
        "shared": 100, "lsh-8": 94.8, "lsh-4": 92.5, "lsh-2": 76.9, "lsh-1": 52.5,
    }  # fmt: skip
    assert PAPER["lsh-1"]["shared"] == 0.8 and list(PAPER) == ["shared", "lsh-4", "lsh-2", "lsh-1"]
    assert "Table 2" in SOURCE


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--words=7", "--chunk_size=5"], "an example of 7 symbols has 16 tokens; give a divisor"),
        (["--words=7,x"], "--words=7,x: give whole numbers"),
        (["--num_workers=2"], "--num_workers=2: examples are drawn"),
        (["--devices=2", "--batch_size=3"], "--batch_size=3: give a multiple of devices"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2_and_makes_nothing(tmp_path, flags, message):
    parent = tmp_path / "results"
    status, _, err = tiny.run(experiment, *flags, f"--output_dir={parent}")
    assert status == 2 and message in err and err.count("\n") == 1 and not parent.exists()


@pytest.mark.slow
def test_a_small_run_from_end_to_end(tmp_path, monkeypatch):
    flags = ["--nogrid", *(f"--{name}={value}" for name, value in SMALL.items())]
    status, out, err = tiny.run(experiment, *flags, f"--output_dir={tmp_path}")
    assert (status, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    places = ["w5_full_unscaled_seed1", "w5_lsh_1_unscaled_2buckets_masked_union_seed1"]
    files = ["report.md", "results.jsonl", "rounds.png", "rounds.svg", "settings.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *places])
    text = (folder / "results.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(r["attention"], r["evaluated"]) for r in rows] == [
        (name, column) for name in ("shared", "lsh-1") for column in (*EXACT, "lsh-1")
    ]
    for r in rows:
        assert 0 <= r["accuracy"] <= 1 and r["nll"] > 1 and r["symbols"] == 5 * 16
        assert (
            r["draws"] == 1 and r["step"] in (2, 4, 6, 8) and r["parameters"] == 395_264 + 256 * 12
        )
    written = (folder / "report.md").read_text()
    for flag in flags:
        assert flag in written

    # As a kill leaves it within the second training: that goes on, to the same numbers.
    curves = [read_metrics(folder / place) for place in places]
    shutil.rmtree(folder / places[1] / "checkpoints" / "8")
    (folder / "results.jsonl").write_text("".join(text.splitlines(keepends=True)[:5]))
    monkeypatch.setattr(figure_files, "save", tiny.save_nothing)
    status, out, _ = tiny.run(experiment, f"--resume={folder}")
    assert status == 0 and "1 of 2 models" in out and "going on after step 6" in out
    again = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    timed = ("seconds", "time", "begun")
    for one, two in zip(rows, again, strict=True):
        assert {k: x for k, x in one.items() if k not in timed} == {
            k: x for k, x in two.items() if k not in timed
        }
    for place, curve in zip(places, curves, strict=True):
        losses = [(r["kind"], r["step"], r["loss"]) for r in curve]
        assert losses == [(r["kind"], r["step"], r["loss"]) for r in read_metrics(folder / place)]


def test_the_papers_own_numbers_are_reproduced():
    found = verdict.claims(Cells(as_in_the_paper(), BASE), 127)
    assert [claim.holds for claim in found] == [True] * 5
    assert found[4].numbers == "lsh-4 0.8, lsh-2 0.8, lsh-1 0.8"
    assert verdict.verdict(found) == "Reproduced: all 5 statements of the paper's table hold."


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({("lsh-2", "lsh-1"): -20.0}, 3),
        ({("shared", "lsh-1"): 45.0}, 2),
        ({("lsh-4", "shared"): 99.0}, 4),
        ({("lsh-1", "lsh-8"): -30.0}, 0),
        ({("lsh-1", "lsh-2"): -30.0}, 1),
    ],
)
def test_a_statement_that_does_not_hold_is_named(change, fails):
    found = verdict.claims(Cells(as_in_the_paper(change), BASE), 127)
    assert not found[fails].holds
    said = verdict.verdict(found)
    assert found[fails].words in said and said.startswith("Reproduced in part")


def test_what_was_not_measured_is_no_statement():
    measured = [one for one in as_in_the_paper() if one.evaluated != "lsh-1"]
    found = verdict.claims(Cells(measured, BASE), 127)
    assert [claim.words.split()[0] for claim in found] == ["every", "full"]
    only = [one for one in as_in_the_paper() if one.attention == "shared"]
    assert verdict.claims(Cells(only, BASE), 127) == []


def test_seeds_that_scatter_or_are_few_decide_nothing():
    def judged(*scores):
        rows = [row("shared", "shared", 99.0, seed=seed) for seed in SEEDS]
        rows += [row("shared", "lsh-1", 60.0, seed=seed) for seed in SEEDS]
        rows += [row("lsh-4", "lsh-4", 99.0, seed=seed) for seed in SEEDS]
        rows += [row("lsh-4", "lsh-1", x, seed=seed) for seed, x in enumerate(scores)]
        return verdict.claims(Cells(rows, BASE), 127)

    assert [one.answer for one in judged(70.0, 71.0, 72.0)] == ["yes"]
    assert [one.answer for one in judged(50.0, 49.0, 48.0)] == ["no"]
    for scores in ((65.0, 90.0, 58.0), (70.0, 71.0)):
        (claim,) = found = judged(*scores)
        assert claim.holds is None
        assert verdict.verdict(found).startswith("Not decided: 0 of 1 statements")


def test_models_that_learned_nothing_are_not_compared():
    rows = as_in_the_paper({("lsh-4", name): -60.0 for name in ("lsh-4", "lsh-8")})
    words = [claim.words for claim in verdict.claims(Cells(rows, BASE), 127)]
    assert len(words) == 2 and words[0].startswith("every") and words[1].startswith("full")
    assert not any("fails" in x.words for x in verdict.claims(Cells(as_in_the_paper(), BASE), 3))


def test_no_verdict_without_rows_that_can_be_judged():
    cells = Cells([row("lsh-1", "lsh-1", 1.0)], BASE)  # learned nothing
    assert verdict.verdict(verdict.claims(cells, 127)).startswith("No statement")
    assert verdict.explained(cells, 127, PAPER)[:3] == [""] * 3


def test_the_sense_of_full_that_is_nearest_to_chance_is_named():
    rows = [row("lsh-4", "lsh-4", 99.0), row("lsh-4", "shared", 99.0), row("lsh-4", "plain", 0.8)]
    rows += [row("lsh-1", "lsh-1", 99.0), row("lsh-1", "plain", 2.8)]
    rows += [row("lsh-2", "lsh-2", 1.0), row("lsh-2", "plain", 55.0)]  # did not learn: says nothing
    said, *_, left_out = verdict.explained(Cells(rows, BASE), 127, PAPER)
    assert left_out.endswith("less than 50 % of the symbols: *lsh-2, c = 1* (1.0 %).")
    assert "is chance, 0.8 %. Of 2 models" in said and "*plain* (dot product" in said
    assert "1.8 % in the mean" in said
    assert said.endswith("*shared* 99.0 to 99.0; *plain* 0.8 to 2.8.")


def test_the_attempts_number_is_looked_for_in_every_pair():
    scaled = Hashing(scaled=True)
    rows = [row("plain", "plain", 70.0), row("plain", "lsh-8", 60.0), row("shared", "shared", 99.0)]
    rows += [row("shared", "lsh-8", 98.0), row("plain", "lsh-8", 1.5, other=scaled)]
    said = verdict.explained(Cells(rows, BASE), 127, PAPER)[1]
    assert "is within 3 times chance of what was trained with *plain, c = 1* (itself 70.0)." in said
    assert said.endswith(
        ": *plain, c = 1* (itself 70.0) 1.5 to 60.0; *shared, c = 1* (itself 99.0) 98.0 to 98.0."
    )
    rows[-1] = row("plain", "lsh-8", 30.0, other=scaled)
    assert "comes from no setting" in verdict.explained(Cells(rows, BASE), 127, PAPER)[1]
    rows[-1] = row("plain", "lsh-8", 1.5, other=scaled)
    rows[0] = row("plain", "plain", 7.0)  # did not learn: says nothing
    *_, said, _, left_out = verdict.explained(Cells(rows, BASE), 127, PAPER)
    assert "comes from no setting" in said and "*plain, c = 1* (7.0 %)" in left_out


def test_the_nearest_setting_comes_first():
    scaled = Hashing(scaled=True)
    rows = as_in_the_paper({("shared", "lsh-1"): 4.0})
    rows += [row("shared", column, x, hashing=scaled) for column, x in PAPER["shared"].items()]
    rows += [row("shared", f"lsh-{n}", 50.0, positions="normal") for n in (8, 4, 2, 1)]
    cells = Cells(rows, BASE)
    found = verdict.nearest(cells, PAPER)["shared"]
    assert [(gap, name, hashing) for gap, name, hashing, _ in found] == [
        (pytest.approx(0.0), "shared", scaled),
        (pytest.approx(1.0), "shared", BASE),
        (pytest.approx((44.8 + 42.5 + 26.9 + 2.5) / 4), "shared, N(0, 1) positions", BASE),
    ]
    said = verdict.explained(cells, 127, PAPER)[2]
    assert said.endswith(": its row shared by *shared, c = 1/√d* (0.0 points away).")


def test_the_report_has_mean_and_spread_and_what_is_missing():
    rows = as_in_the_paper() + [row("shared", "lsh-8", 98.8, seed=3)]
    settings = Settings(words=(31, 63), chunk_size=16)
    made = report.report(SoFar(rows, command="launch/local x"), settings)
    lines = [line for line in made.markdown.splitlines() if line.startswith("| shared ")]
    cells = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    assert cells[:3] == ["shared", "100.0 ± 0.0", "95.8 ± 3.2"]
    assert "tables --scale=cpu --only=reformer2`" in made.markdown and "reformer2" in TABLES
    for said in ("launch/local x", SOURCE, 'What "shared" is', "411,648"):
        assert said in made.markdown
    assert made.markdown.index("Reproduced: all") < made.markdown.index("One layer")
    assert "What learns later is trained longer: *lsh-1* 2 times as long.\n" in made.markdown
    assert "63 symbols" not in made.markdown and "not done" not in made.markdown
    some = trainings(Settings(words=(31, 63), chunk_size=16, seeds=(0, 1)))
    some = [one for one in some if one.attention == "lsh-1"]
    made = report.report(SoFar(rows, [one.title for one in some]), settings)
    assert (
        "4 models are not done yet: lsh-1 (c = 1, B = 2L/C, bucket mask, union), 31 symbols, seeds"
        " 0, 1; lsh-1 (c = 1, B = 2L/C, bucket mask, union), 63 symbols, seeds 0, 1."
        in made.markdown
    )


def test_the_figure_has_a_line_a_model():
    drawn = figure({31: Cells(as_in_the_paper(), BASE)})
    (axes,) = drawn.axes
    lines = [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "-"]
    printed = [list(columns.values())[::-1] for columns in PAPER.values()]
    assert lines == [pytest.approx(columns) for columns in printed]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "lsh-1", "lsh-2", "lsh-4", "lsh-8", "shared",
    ]  # fmt: skip
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == [f"trained with {name}" for name in PAPER]
