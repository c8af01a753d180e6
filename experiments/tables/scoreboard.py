"""The scoreboard: what the papers are cited for, and what of it holds here."""

from __future__ import annotations

import math
import os
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.command_line import say
from attnlab.runs.folder import Folder
from attnlab.runs.intervals import reject_by_holm
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import document, group
from experiments.tables import verdicts
from experiments.tables.claims import RESULTS, ClaimVerdict, all_claims, judge_claims
from experiments.tables.figure import LOOKS, gaps_figure
from experiments.tables.mapping import all_tables
from experiments.tables.verdicts import Gap

_HEADER = [
    "claim", "where", "verdict", "Holm", "of", "the paper", "its number", "here",
    "rows that agree", "seeds", "run",
]  # fmt: skip
_SIGNS = (
    "+, or a ratio above 1, is the side of the paper's number or word; beside *level*, *holds*"
    " and a tie of the paper it is more. *Its number* says how the paper's number was"
    " checked; *words* are of its text, which prints none. *Seeds* are those of the row that"
    " decides, and of the one beside it."
)
_SEEDS = (
    "Where three seeds left a doubt, more were added, up to eight, until a gap was decided, of"
    " which no interval knows: of equal rows that vary by the tie, 12 in 100 would get a side so,"
    " not 5."
)
_DRAWN = (
    "{} claims are drawn, those whose gap the paper prints; {} are not: counts, ratios, words,"
    " ties, gaps whose size does not count, and what is not comparable or not run."
)


def run(folder: Folder) -> int:
    """Judges all claims, says the verdicts, and writes them into the folder."""
    found = list(judge_claims(list(all_claims().values())))
    for one in found:
        claim, verdict = one.claim, one.line.verdict
        numbers = f"{claim.unit} {'; '.join(_numbers(one))}; {one.agree}"
        say(f"{claim.paper}, {claim.where}: {claim.says}: {verdict} ({numbers})")
    say(f"\n{_counts(found)}\n\n{_describe_holm(found)}")
    path = folder.begin()
    folder.write("scoreboard.md", markdown(found, os.path.relpath(RESULTS, path)))
    figure_files.save({"claims": _figure(found)}, path)
    say(f"\nscoreboard: {path / 'scoreboard.md'}")
    return 0


def markdown(found: Sequence[ClaimVerdict], links: str = "..") -> str:
    """The whole scoreboard; `links` is the way from its folder to those of the runs."""
    drawn = len(_drawn(found))
    parts = ["# What the papers are cited for", _counts(found), _describe_holm(found)]
    parts += ["![Our gaps over the paper's](claims.svg)", _DRAWN.format(drawn, len(found) - drawn)]
    parts += [_SIGNS, *verdicts.RULES.values()]
    parts += ["Of several rows, or pairs of rows, the worst decides."]
    kept_by_holm = _keep_by_holm(found)
    for paper, some in group(found, lambda one: one.claim.paper).items():
        rows = [_cells(one, kept_by_holm) for one in some]
        parts += [f"## {paper}", markdown_table(_HEADER, rows)]
        missing = [one.line.command for one in some if one.line.verdict == verdicts.NOT_RUN]
        parts += [f"    {command}" for command in dict.fromkeys(missing)]
    runs = [
        f"- [{run}]({links}/{run}/report.md)" for run in sorted({one.where for one in found} - {""})
    ]
    return document(*parts, "## Where\n\n    launch/local tables --claims", "\n".join(runs))


def _cells(one: ClaimVerdict, kept_by_holm: Mapping[str, bool]) -> list[str]:
    claim, line = one.claim, one.line
    theirs, ours = _numbers(one)
    holm = {True: "kept", False: "lost", None: ""}[kept_by_holm.get(claim.name)]
    says = f"{claim.says}; *{claim.remark}*" if claim.remark else claim.says
    seeds = ", ".join(str(len(sample)) for sample in one.gap.samples) if one.gap else ""
    return [
        says, claim.where, line.verdict, holm, claim.unit, theirs, one.origin, ours, one.agree,
        seeds, one.where,
    ]  # fmt: skip


def _numbers(one: ClaimVerdict) -> tuple[str, str]:
    """The paper's number and ours, so that + and a ratio above 1 are as the claim says."""
    line, gap = one.line, one.gap
    if one.claim.rule == "exact":
        return "", ""
    if gap is not None:
        sign = verdicts.printed_side(gap, one.claim.tie) or 1
        mean = sign * gap.ours + 0.0  # no −0
        ours = f"{mean:+.3g}"
        if math.isfinite(gap.half_width):
            ours += f" ({mean - gap.half_width:.3g} to {mean + gap.half_width:.3g})"
        if isinstance(gap.paper, str):
            return gap.paper, ours
        return f"{sign * gap.paper:+.3g}", ours
    if one.claim.rule == "ratio" and line.ours:
        is_less = line.paper == "less" or _is_below_one(line.paper)
        return _orient(line.paper, is_less), _orient(line.ours, is_less)
    return line.paper, line.ours


def _is_below_one(ratio: str) -> bool:
    return ratio.endswith("×") and float(ratio.removesuffix("×")) < 1


def _orient(ratio: str, is_less: bool) -> str:
    """A ratio, or where the claim is that it is below 1 its inverse; words stay."""
    if not (is_less and ratio.endswith("×")):
        return ratio
    return f"{1 / float(ratio.removesuffix('×')):#.3g}×"


def _keep_by_holm(found: Sequence[ClaimVerdict]) -> dict[str, bool]:
    """Whether what is decided of a trained claim stays so beside all others, by its name."""
    tested = [
        one
        for one in found
        if one.gap is not None and verdicts.outcome(one.line.verdict) != "not comparable"
    ]
    rejected = reject_by_holm([one.p_value for one in tested])
    return {
        one.claim.name: kept
        for one, kept in zip(tested, rejected, strict=True)
        if verdicts.kind(one.line.verdict) != verdicts.UNDECIDED
    }


def _describe_holm(found: Sequence[ClaimVerdict]) -> str:
    kept = _keep_by_holm(found)
    return (
        f"Training decides {len(kept)} claims, each by its own 95 % interval. With Holm's"
        f" correction for all that were tested together, {sum(kept.values())} of them stay decided"
        f" (*kept*). {_SEEDS}"
    )


def _counts(found: Sequence[ClaimVerdict]) -> str:
    """How many claims hold: by how they are decided, and by paper."""
    how = {
        "gap": "an effect, trained",
        "ratio": "a ratio of times or memory, on other hardware than the paper's",
        "exact": "a count",
    }
    by_rule = group(found, lambda one: how[one.claim.rule])
    by_paper = group(found, lambda one: one.claim.paper)
    rows = []
    for name, some in {**by_rule, "all": found, **by_paper}.items():
        counts = Counter(verdicts.outcome(one.line.verdict) for one in some)
        rows.append([name, f"{len(some)}", *(str(counts[x] or "") for x in verdicts.OUTCOMES)])
    return markdown_table(["claims", "", *verdicts.OUTCOMES], rows)


def _drawn(found: Sequence[ClaimVerdict]) -> list[tuple[Gap, str]]:
    """Our gaps over the paper's, of the comparable claims of which it prints one that is no tie."""
    gaps = []
    for one in found:
        outcome = verdicts.outcome(one.line.verdict)
        sizes = getattr(all_tables().get(one.claim.table), "sizes", True)
        if one.gap is None or outcome not in LOOKS or not sizes:
            continue
        theirs, name = one.gap.paper, textwrap.fill(f"{one.claim.paper}: {one.claim.says}", 60)
        if not isinstance(theirs, str) and abs(theirs) >= one.claim.tie:
            ours = tuple([x / theirs for x in sample] for sample in one.gap.samples)
            gaps.append((Gap(name, "", 1, ours), outcome))
    return gaps


def _figure(found: Sequence[ClaimVerdict]) -> Figure:
    figure = gaps_figure(
        _drawn(found),
        title="Gaps over the paper's",
        score="1 is the paper's gap, below 0 the other side",
    )
    figure.axes[0].set_xscale("symlog", linthresh=verdicts.TIMES)
    figure.axes[0].xaxis.set_major_formatter("{x:g}")
    return figure
