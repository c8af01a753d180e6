"""Claims: what is refused, which comparison decides, and the command that draws the scoreboard."""

import json
import re

import pytest

from attnlab.runs.errors import Invalid
from experiments.tables import __main__ as experiment
from experiments.tables import claims, scoreboard
from tests.experiments import tiny

TABLE = """
[dot]
paper = "Luong et al. 2015"
where = "Table 4"
says = "Dot is better"
table = "luong4"
rows = ["global, dot"]
"""
COUNTED = """
[dot]
paper = "Vaswani et al. 2017"
where = "Table 1"
says = "A signal of a recurrent layer passes all positions"
table = "vaswani1_path"
rows = ["Recurrent"]
"""
FOLDER = """
[tuned]
paper = "Devlin et al. 2018"
where = "§1"
says = "Pre-training helps"
folder = "cpu/own"
score = "f1"
rows = [{ start = "tuned" }, { start = "frozen" }]
against = [{ start = "scratch" }]
word = "more"
"""


def judged(tmp_path, text, lines=()):
    folder = tmp_path / "results" / "cpu" / "own"
    folder.mkdir(parents=True)
    (tmp_path / "claims.toml").write_text(text)
    (folder / "results.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = claims.all_claims(tmp_path / "claims.toml")
    return list(claims.judge_claims(list(found.values()), tmp_path / "results"))


def lines(**models):
    return [
        {"cell": {"axes": {"start": start}, "seed": seed}, "scores": {"f1": x}}
        for start, scores in models.items()
        for seed, x in enumerate(scores)
    ]


WELL = {"tuned": (0.8, 0.81, 0.82), "frozen": (0.7, 0.71, 0.72), "scratch": (0.4, 0.41, 0.42)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"f1"', '"f2"', "claim tuned: cpu/own has no row with 'f2' and {'start': 'tuned'}; give"),
        ('"scratch"', '"none"', "claim tuned: cpu/own has no row with 'f1' and {'start': 'none'}"),
        ('word = "more"', 'word = "up"', "claim tuned: got word = 'up'; give less, level or more"),
    ],
)
def test_a_claim_that_names_what_there_is_not_is_refused(tmp_path, old, new, message):
    with pytest.raises(Invalid, match=re.escape(message)):
        judged(tmp_path, FOLDER.replace(old, new), lines(**WELL))


def test_a_row_of_a_claim_that_two_cases_have_is_refused(tmp_path):
    two = [{**x, "case": {"implementation": i}} for x in lines(**WELL) for i in ("dense", None)]
    with pytest.raises(Invalid, match=r"is of one case, or training; got two of cpu/own"):
        judged(tmp_path, FOLDER, two)


def test_the_gap_of_rows_that_no_paper_prints_needs_a_word(tmp_path):
    text = TABLE.replace('"luong4"', '"britz5"').replace('"global, dot"', '"scaled Mul-128"')
    (tmp_path / "claims.toml").write_text(text)
    (claim,) = claims.all_claims(tmp_path / "claims.toml").values()
    with pytest.raises(Invalid, match=r"got none of 'scaled Mul-128.*; give other rows, or word"):
        list(claims.judge_claims([claim]))


def test_the_worst_of_several_comparisons_decides(tmp_path):
    (one,) = judged(tmp_path, FOLDER, lines(**WELL | {"frozen": (0.3, 0.31, 0.32)}))
    assert (one.line.verdict, one.line.row, one.agree) == ("opposite", "frozen", "1 of 2")
    assert one.line.gap == pytest.approx(-0.1) and one.line.low < -0.1 < one.line.high < 0
    assert (one.where, one.line.scale) == ("cpu/own", "cpu")


def test_a_later_line_of_a_seed_counts(tmp_path):
    (one,) = judged(tmp_path, FOLDER, lines(**WELL) + lines(scratch=(0.9, 0.91, 0.92)))
    assert one.line.verdict == "opposite" and one.line.n == 3


def test_what_is_as_the_claim_says_has_a_plus_or_a_ratio_above_1(tmp_path):
    """Of less: the tuned rows have less than the others, and a part of the time."""
    less = FOLDER.replace('word = "more"', 'word = "less"')
    found = lines(tuned=(0.02, 0.07, 0.12), frozen=(0.2, 0.21, 0.22), scratch=(0.4, 0.41, 0.42))
    (gap,) = judged(tmp_path / "gap", less, found)
    (ratio,) = judged(tmp_path / "ratio", less + 'rule = "ratio"\n', found)
    made = scoreboard.markdown([gap])
    assert " kept | F1, of 1 |      less |      words | +0.2 (0.177 to 0.223) " in made
    assert 0.001 < gap.p_value < 0.05  # that of tuned, which scatters
    assert "Training decides 1 claims" in made and "1 of them stay decided" in made
    assert " 3.50× " in scoreboard.markdown([ratio])


def test_a_ratio_is_judged_by_its_word(tmp_path):
    text = FOLDER.replace('word = "more"', 'word = "less"\nrule = "ratio"')
    (one,) = judged(tmp_path, text, lines(tuned=(1.0,), frozen=(1.5,), scratch=(2.0,)))
    assert (one.line.verdict, one.line.ours, one.agree) == ("reproduced", "0.500×", "2 of 2")


def test_what_is_counted_has_the_verdicts_of_its_page(tmp_path):
    (one,) = judged(tmp_path, COUNTED)
    assert (one.line.verdict, one.line.row, one.agree) == ("exact", "Recurrent", "1 of 1")
    text = COUNTED.replace("vaswani1_path", "vaswani3_parameters").replace(
        'rows = ["Recurrent"]', ""
    )
    (all_rows,) = judged(tmp_path / "all", text)
    assert (all_rows.line.verdict, all_rows.agree) == ("not exact", "10 of 11")


def test_a_table_that_was_not_run_has_its_command(tmp_path):
    (one,) = judged(tmp_path, TABLE)
    assert (one.line.verdict, one.where) == ("not run", "")
    made = scoreboard.markdown([one])
    assert "\n    launch/local tables --scale=cpu --only=luong4 --multi30k=PATH\n" in made


def test_the_command_says_and_writes_the_scoreboard(tmp_path):
    out = tiny.finish(experiment, "--claims", f"--output_dir={tmp_path}")
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "claims.svg", "scoreboard.md", "settings.json",
    }  # fmt: skip
    says = [claim.says for claim in claims.all_claims().values()]
    assert all(f": {one}: " in out for one in says)
