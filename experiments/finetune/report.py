"""What decides between two models: the gaps of the same seeds; and a figure of all scores."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files, intervals
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import GRID, SERIES
from attnlab.training.study import Row, by_title

__all__ = ["figure", "gaps_of", "sections"]


def gaps_of(rows: Sequence[Row], measure: str) -> dict[tuple[str, str], list[float]]:
    """How far the first of two models is above the second, by the seeds that both have."""
    scores = {
        title: {row.cell.seed: row.scores[measure] for row in some}
        for title, some in by_title(rows).items()
    }
    return {
        (a, b): [scores[a][seed] - scores[b][seed] for seed in both]
        for a, b in itertools.combinations(scores, 2)
        if (both := sorted(scores[a].keys() & scores[b].keys()))
    }


def sections(rows: Sequence[Row], measure: str) -> Iterator[str]:
    """The figure, and the gaps."""
    yield "![Scores of all seeds](scores.svg)"
    gaps, lines = gaps_of(rows, measure), []
    for (a, b), differences in gaps.items():
        mean, width = statistics.fmean(differences), intervals.half_width(differences, len(gaps))
        few = len(differences) < intervals.FEWEST
        verdict = "decided" if intervals.sign(differences, len(gaps)) else "not decided"
        said = f"{100 * mean:+.1f}" + f" ± {100 * width:.1f}" * (not few) + " points"
        lines.append([f"{a} − {b}", str(len(differences)), said, "few seeds" if few else verdict])
    if lines:
        yield "## Between two models"
        yield (
            "A gap is that of the scores of the same seeds, ± half of its 95 % interval (Student's"
            " t; of several gaps all at once); it is *decided* where it is more than that, and"
            f" from {intervals.FEWEST} seeds on."
        )
        yield markdown_table(["gap", "seeds", measure, ""], lines)


def figure(rows: Sequence[Row], measure: str) -> Figure:
    """The score of every training, a line a model, the best of each start first."""
    means = {
        title: statistics.fmean(100 * row.scores[measure] for row in some)
        for title, some in by_title(rows).items()
    }
    starts = ("tuned", "frozen", "scratch")
    models = sorted(
        by_title(rows).items(),
        key=lambda model: (starts.index(model[1][0].cell["start"]), -means[model[0]]),
    )
    with figure_files.style():
        drawn = Figure(figsize=(7.2, 1.1 + 0.32 * len(models)), layout="constrained")
        axes = drawn.subplots()
        dashed = "; dashed: scratch" * ("scratch" in means)
        for i, (title, some) in enumerate(models):
            color, marker = SERIES[starts.index(some[0].cell["start"])]
            scores = [100 * row.scores[measure] for row in some]
            axes.plot(scores, [i] * len(some), marker, color=color, markersize=5, alpha=0.7)
            axes.plot([means[title]] * 2, [i - 0.3, i + 0.3], color=color)
            if some[0].cell["start"] == "scratch":
                axes.axvline(means[title], color=color, linewidth=0.9, linestyle="--", zorder=1)
        axes.set_yticks(range(len(models)), [title for title, _ in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlabel(f"{measure}, test (%): a mark a seed, a bar their mean{dashed}")
        axes.set_title("BERT fine-tuned, frozen, or trained from scratch")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return drawn
