"""Columns and figures of the report of `translate`, beside the scores."""

import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attnlab.runs import figure_files, palette
from attnlab.runs.report import group
from attnlab.studies.frontier import Mark, frontier_figure
from attnlab.studies.study import Cell, Row, by_title
from attnlab.training.bleu import RESAMPLINGS, Bucket
from attnlab.training.evaluation_figures import Alignment, alignment_figure, length_figure

_OF_WEIGHTS = {"AER", "entropy of the weights"}  # scores of models that attend
_VARIANCE = "gradient_variance"


def columns(rows: Sequence[Row]) -> dict[str, str]:
    """Numbers of the training, BLEU's brevity penalty, and the length penalty that was chosen."""
    details = [row.details for row in rows]
    speed = statistics.fmean(x["tokens_per_second"] for x in details)
    steps = statistics.fmean(x["steps"] for x in details)  # fewer where a plateau ends some
    made = {"steps": f"{steps:,.0f}", "tokens/s": f"{speed:,.0f}"}
    if penalties := [x["bleu"]["brevity_penalty"] for x in details if "bleu" in x]:
        made = {"brevity penalty": f"{statistics.fmean(penalties):.3f}", **made}
    if exponents := sorted({x["length_penalty"] for x in details if "length_penalty" in x}):
        made = {"length penalty": ", ".join(f"{x:g}" for x in exponents), **made}
    return made


def sections(rows: Sequence[Row]) -> Iterator[str]:
    """The signature of BLEU, and the figures."""
    measure = _measure(rows)
    if signatures := {row.details["bleu"]["signature"] for row in rows if "bleu" in row.details}:
        yield f"BLEU is sacrebleu's: {', '.join(f'`{name}`' for name in sorted(signatures))}."
    yield (
        f"![{measure} by the length of the source; bars: 95 % of {RESAMPLINGS:,} corpora of as many"
        " sentences, drawn from the n of that length](by_length.svg)"
    )
    if _marks(rows, measure):
        yield f"![{measure} against the time of a step](frontier.svg)"
    if any("variance of the gradient" in row.scores for row in rows):
        title = "Variance of the gradient over the validation batches of the shortest sentences"
        yield f"![{title}]({_VARIANCE}.svg)"
    tested = _first_tests(rows).values()
    attend = list(dict.fromkeys(x.cell for x in tested if _OF_WEIGHTS & x.scores.keys()))
    for model, some in _several(attend).items():
        titles = "; ".join(cell.title for cell in some)
        yield f"![Where {titles} look, each pair side by side](alignments_{model}.svg)"
    for cell in attend:
        yield f"![Where {cell.title} looks when it writes these targets]({_file(cell)}.svg)"


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that `sections` links, of the first seed of each model.

    Rows without alignments have no figure of them.
    """
    titles = {title: row.details for title, row in _first_tests(rows).items()}
    measure = _measure(rows)
    made: dict[str, Any] = {
        "by_length": length_figure(
            {title: [Bucket(**x) for x in one["buckets"]] for title, one in titles.items()},
            measure=measure,
            unit="words" if measure == "BLEU" else "characters",
            percent=measure != "BLEU",
        )
    }
    if marks := _marks(rows, measure):
        with figure_files.style():
            made["frontier"] = frontier_figure(
                marks, score=measure, costs=["time of a step, µs a token"]
            )
    if lines := {title: one[_VARIANCE] for title, one in titles.items() if _VARIANCE in one}:
        made[_VARIANCE] = _variance_figure(lines)
    first_cells = {row.cell for row in _first_tests(rows).values()}
    drawn = {
        row.cell: [_alignment(one) for one in row.details["alignments"]]
        for row in rows
        if row.cell in first_cells and row.details.get("alignments")
    }
    for model, some in _several(list(drawn)).items():
        parts = [cell.title.split(", ") for cell in some]
        own = [", ".join(x for x in one if any(x not in other for other in parts)) for one in parts]
        panels = [
            dataclasses.replace(pair, title=name)
            for pairs in zip(*(drawn[cell] for cell in some), strict=True)
            for name, pair in zip(own, pairs, strict=True)
        ]
        made[f"alignments_{model}"] = alignment_figure(
            panels, columns=len(some), title=f"{model}: the same targets, side by side"
        )
    for cell, alignments in drawn.items():
        made[_file(cell)] = alignment_figure(alignments, title=f"{cell.title}: weights")
    return made


def _first_tests(rows: Sequence[Row]) -> dict[str, Row]:
    """The first seed's test of each model by each search, by the title of the two."""
    return {title: some[0] for title, some in by_title([x for x in rows if x.scores]).items()}


def _measure(rows: Sequence[Row]) -> str:
    return "BLEU" if any("BLEU" in row.scores for row in rows) else "exact match"


def _file(cell: Cell) -> str:
    name = cell.folder.removesuffix(f"-seed{cell.seed}")
    return "alignment_" + re.sub(r"[^\w.+]+", "-", name)


def _alignment(one: Mapping[str, Any]) -> Alignment:
    known = frozenset((t, s) for t, s in one["known"])
    return Alignment(one["source"], one["target"], one["weights"], known=known)


def _several(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each model that has several."""
    models = group(cells, lambda cell: cell["model"])
    return {model: some for model, some in models.items() if len(some) > 1}


def _marks(rows: Sequence[Row], measure: str) -> dict[str, Mark]:
    """The scores of each model and what a token costs in training; none of a model alone."""
    tests = by_title([row for row in rows if row.scores])
    looks = palette.of_lines(list(tests))
    marks = {}
    for title, some in tests.items():
        speed = statistics.median(row.details["tokens_per_second"] for row in some)
        marks[title] = Mark(looks[title], [row.scores[measure] for row in some], [1e6 / speed])
    return marks if len(marks) > 1 else {}


def _variance_figure(lines: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Variance of the gradient over steps, a line a model."""
    with figure_files.style():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for title, (color, marker) in palette.of_lines(list(lines)).items():
            axes.plot(
                *lines[title], color=color, marker=marker, markersize=5, linewidth=1.6, label=title
            )
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.set_xlim(0, None)
        axes.set_xlabel("step")
        axes.set_ylabel("variance of the gradient")
        axes.grid()
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure
