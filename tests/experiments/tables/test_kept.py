"""Kept verdicts: today's rules say of the kept rows what they said; `test_reports` has the rest."""

from experiments.tables import claims, scoreboard, verdicts


def test_the_kept_scoreboard_has_the_verdicts_of_the_kept_rows():
    found = list(claims.judge_claims(list(claims.all_claims().values())))
    assert len(found) >= 40
    kept = claims.RESULTS / "claims" / "scoreboard.md"
    assert kept.read_text() == scoreboard.markdown(found)
    kinds = [verdicts.kind(one.line.verdict) for one in found]
    unknown = kinds.count(verdicts.UNDECIDED) + kinds.count(verdicts.NOT_RUN)
    assert 3 * unknown < len(found)
