"""Kept verdicts: today's rules say of the kept rows what they said; `test_reports` has the rest."""

from pathlib import Path

from experiments.tables import claims, report, scoreboard, verdicts

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results"


def test_the_kept_counts_have_the_verdicts_and_the_numbers_of_their_rows():
    """Without the report, which counts parameters of a hundred models again."""
    kept = KEPT / "tables"
    assert report.csv_text(report.of_kept(kept)) == (kept / "results.csv").read_bytes().decode()


def test_the_kept_scoreboard_has_the_verdicts_of_the_kept_rows():
    found = list(claims.judged(list(claims.all_claims().values())))
    assert len(found) >= 40
    assert (KEPT / "claims" / "scoreboard.md").read_text() == scoreboard.markdown(found)
    kinds = [verdicts.kind(one.line.verdict) for one in found]
    unknown = kinds.count(verdicts.UNDECIDED) + kinds.count(verdicts.NOT_RUN)
    assert 3 * unknown < len(found)
