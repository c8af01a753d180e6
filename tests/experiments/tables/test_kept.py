"""Kept verdicts: today's rules say of the kept rows what they said; `test_reports` has the rest."""

from experiments.tables import claims, report, scoreboard, verdicts


def test_the_kept_scoreboard_has_the_verdicts_of_the_kept_rows():
    found = list(claims.judge_claims(list(claims.all_claims().values())))
    assert len(found) >= 40
    kept = claims.RESULTS / "claims" / "scoreboard.md"
    assert kept.read_text() == scoreboard.markdown(found)
    kinds = [verdicts.kind(one.line.verdict) for one in found]
    unknown = kinds.count(verdicts.UNDECIDED) + kinds.count(verdicts.NOT_RUN)
    assert 3 * unknown < len(found)


def test_a_row_names_the_revisions_of_all_its_seeds():
    luong4 = next(iter(report.read_sections(claims.RESULTS / "tables_cpu_luong4")))
    (line,) = [line for line in luong4.lines if line.row == "local-p, general"]
    assert line.seeds == "0,1,2,3,4,5,6,7" and line.revision == "8f27a9fac928 84f70318188e"
    assert "Since dffa1694, as in 84f70318188e, a471a1369d43" in report.markdown([luong4], "", "")
