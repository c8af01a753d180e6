"""The scoreboard: what the papers are cited for, and what of it holds here."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.command_line import say
from attnlab.runs.folder import Folder
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import document, group
from experiments.tables import verdicts
from experiments.tables.claims import RESULTS, ClaimVerdict, all_claims, judge_claims
from experiments.tables.figure import gaps_figure
from experiments.tables.verdicts import Gap

__all__ = ["markdown", "run"]

COLUMNS = {
    "holds": (verdicts.EXACT, verdicts.REPRODUCED),
    "direction alone": (verdicts.OTHER_SIZE,),
    "does not hold": (
        verdicts.OPPOSITE, verdicts.NO_DIFFERENCE, verdicts.DIFFERENCE, verdicts.NOT_EXACT,
    ),
    "not comparable": (verdicts.NOT_COMPARABLE,),
    "undecided": (verdicts.UNDECIDED,),
    "not run": (verdicts.NOT_RUN,),
}  # fmt: skip


def run(folder: Folder) -> int:
    """Judges all claims, says the verdicts, and writes them into the folder."""
    found = list(judge_claims(list(all_claims().values())))
    for one in found:
        what, where, verdict, *gaps, rows, _, _ = _cells(one)
        say(f"{one.claim.paper}, {where}: {what}: {verdict} ({'; '.join(gaps)}; {rows})")
    say(f"\n{_counts(found)}")
    path = folder.begin()
    folder.write("scoreboard.md", markdown(found, os.path.relpath(RESULTS, path)))
    figure_files.save({"claims": _figure(found)}, path)
    say(f"\nscoreboard: {path / 'scoreboard.md'}")
    return 0


def markdown(found: Sequence[ClaimVerdict], links: str = "..") -> str:
    """The whole scoreboard; `links` is the way from its folder to those of the runs."""
    parts = ["# What the papers are cited for", _counts(found)]
    parts += ["![Our gaps over the paper's](claims.svg)", *verdicts.RULES.values()]
    parts += ["Of several rows, or pairs of rows, the worst decides."]
    header = ["claim", "where", "verdict", "the paper", "here", "rows that agree", "scale", "run"]
    for paper, some in group(found, lambda one: one.claim.paper).items():
        parts += [f"## {paper}", markdown_table(header, [_cells(one) for one in some])]
        missing = [one.line.command for one in some if one.line.verdict == verdicts.NOT_RUN]
        parts += [f"    {command}" for command in dict.fromkeys(missing)]
    runs = [
        f"- [{run}]({links}/{run}/report.md)" for run in sorted({one.where for one in found} - {""})
    ]
    return document(*parts, "## Where\n\n    launch/local tables --claims", "\n".join(runs))


def _cells(one: ClaimVerdict) -> list[str]:
    claim, line = one.claim, one.line
    shown = [line.paper, line.ours] if line.gap is None else [line.paper_gap, line.gap]
    texts = [x if isinstance(x, str) else f"{x:+.3g}" for x in shown]
    if claim.rule == "exact":
        texts = ["", ""]
    if line.low is not None:
        texts[1] += f" ({line.low:.3g} to {line.high:.3g})"
    return [claim.says, claim.where, line.verdict, *texts, one.agree, line.scale, one.where]


def _counts(found: Sequence[ClaimVerdict]) -> str:
    """How many claims hold: of all, of those that are only counted, and by paper."""
    how = {"gap": "trained", "ratio": "measured", "exact": "counted"}
    by_rule = group(found, lambda one: f"all that are {how[one.claim.rule]}")
    by_paper = group(found, lambda one: one.claim.paper)
    rows = []
    for name, some in {"all": found, **by_rule, **by_paper}.items():
        kinds = Counter(verdicts.kind(one.line.verdict) for one in some)
        counts = [sum(kinds[kind] for kind in column) for column in COLUMNS.values()]
        rows.append([name, f"{len(some)}", *(str(count or "") for count in counts)])
    return markdown_table(["claims", "", *COLUMNS], rows)


def _figure(found: Sequence[ClaimVerdict]) -> Figure:
    """A line for each claim of a gap that the paper prints, if no tie: ours over the paper's."""
    gaps = []
    for one in found:
        if one.gap is None or verdicts.kind(one.line.verdict) == verdicts.NOT_COMPARABLE:
            continue
        theirs, name = one.gap.paper, textwrap.fill(f"{one.claim.paper}: {one.claim.says}", 60)
        if not isinstance(theirs, str) and abs(theirs) >= one.claim.tie:
            ours = tuple([x / theirs for x in sample] for sample in one.gap.samples)
            gaps.append(Gap(name, "", 1, ours))
    figure = gaps_figure(
        gaps, title="Gaps over the paper's", score="1 is the paper's gap, below 0 the other side"
    )
    figure.axes[0].set_xscale("symlog", linthresh=verdicts.TIMES)
    figure.axes[0].xaxis.set_major_formatter("{x:g}")
    return figure
