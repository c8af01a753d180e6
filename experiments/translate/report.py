"""The report of a run: figures of the training, of where each model looks, and by length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attnlab.runs import figure_files, palette
from attnlab.runs.loop import Report
from attnlab.runs.report import SoFar, grouped
from attnlab.training.bleu import RESAMPLINGS
from attnlab.training.curve import read_metrics
from attnlab.training.evaluation_figures import alignment_figure, length_figure
from attnlab.training.training_curve import curve, training_curve
from experiments.translate import drawn
from experiments.translate.corpus import Corpus
from experiments.translate.recipes import Preset
from experiments.translate.table import Row, markdown, results
from experiments.translate.variants import Training, Variant

__all__ = ["report"]

_VOCABULARIES = (
    "The Transformer's source and target share one vocabulary, those of the other models have one "
    "each: compare the BLEU of the two kinds, not their losses and perplexities, which are means "
    "over tokens of different lengths."
)


def report(
    told: SoFar[Row],
    done: Mapping[Training, Row],
    corpus: Corpus,
    preset: Preset,
    folder: Path,
    *,
    average: int | None,
) -> Report:
    """Draws the figures and makes the tables.

    Args:
      told: run as far as it is done.
      done: rows of the trainings that are done.
      corpus: data of training and test.
      preset: settings of the search, and the vocabularies.
      folder: folder of the run.
      average: number of checkpoints whose mean is tested; None = the best one.
    """
    is_bleu = corpus.measure == "BLEU"
    shown: dict[str, tuple[Training, Row]] = {}  # of several seeds the first
    for one, row in done.items():
        shown.setdefault(row.model, (one, row))
    looks = _looks([one.variant for one, _ in shown.values()])
    figures: dict[str, Any] = {
        "curve": training_curve(
            {title: read_metrics(folder / one.folder) for title, (one, _) in shown.items()},
            looks=looks,
        ),
        "by_length": length_figure(
            {title: row.buckets for title, (_, row) in shown.items()},
            looks=looks,
            measure=corpus.measure,
            unit="words" if is_bleu else "characters",
            percent=not is_bleu,
        ),
    }
    said = {
        "curve.svg": "Loss over steps, of training and of validation",
        "by_length.svg": f"{corpus.measure} by the length of the source; bars: 95 % of "
        f"{RESAMPLINGS:,} corpora of as many sentences, drawn from the n of that length",
    }
    variances = {
        title: curve(read_metrics(folder / one.folder), "validation", "gradient_variance")
        for title, (one, _) in shown.items()
    }
    if any(steps for steps, _ in variances.values()):
        figures["gradient_variance"] = _variance_figure(variances, looks)
        said["gradient_variance.svg"] = "Variance of the gradient over validation batches"
    looked = {title: drawn.read(folder / one.folder) for title, (one, _) in shown.items()}
    for models in _variants_of_a_model([one for title, (one, _) in shown.items() if looked[title]]):
        panels = [
            dataclasses.replace(pair, title=title)
            for pairs in zip(*(looked[title] for title in models), strict=True)
            for title, pair in zip(models, pairs, strict=True)
        ]
        file = f"alignments_{shown[models[0]][0].variant.model}"
        figures[file] = alignment_figure(panels, title="The same targets, side by side")
        said[f"{file}.svg"] = f"Where {' and '.join(models)} look, each pair side by side"
    for title, (one, _) in shown.items():
        if alignments := looked[title]:
            file = f"alignment_{one.variant.name}"
            figures[file] = alignment_figure(alignments, title=f"{title}: weights")
            said[f"{file}.svg"] = f"Where {title} looks when it writes these targets"
    search = f"beam search, {preset.beam_size} wide" if preset.beam_size > 1 else "greedy search"
    text = markdown(
        told,
        task=(
            f"Data: {corpus.name}; {len(corpus.splits['test']):,} pairs of the test split, "
            f"{search}. "
            f"The parameters are {_tested(average)}."
        ),
        figures=said,
        notes=list(_notes(done, told.missing, preset, is_bleu)),
    )
    return Report(text, figures, said=results(told.rows))


def _variance_figure(
    lines: Mapping[str, tuple[list[int], list[float]]], looks: Mapping[str, tuple[str, str]]
) -> Figure:
    """Variance of the gradient over steps, a line a model."""
    with figure_files.style():
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for title, line in lines.items():
            color, marker = looks[title]
            axes.plot(*line, color=color, marker=marker, markersize=5, linewidth=1.6, label=title)
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_xlabel("step")
        axes.set_ylabel("variance of the gradient")
        axes.grid(color=palette.GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def _tested(average: int | None) -> str:
    if average is None:
        return "those with the smallest loss on the validation split"
    if average == 1:
        return "those of the last checkpoint"
    return f"the mean of those of the last {average} checkpoints (Vaswani et al. 2017, §6.1)"


def _looks(variants: Sequence[Variant]) -> dict[str, tuple[str, str]]:
    """Color and marker by title: those of the model, or a series' where it has variants."""
    if len({one.model for one in variants}) == len(variants):
        return {one.title: palette.MODELS[one.model] for one in variants}
    colors, markers = zip(*palette.SERIES, strict=True)
    count = len(colors)
    return {
        one.title: (colors[i % count], markers[(i + i // count) % count])
        for i, one in enumerate(variants)
    }


def _variants_of_a_model(trainings: Sequence[Training]) -> list[list[str]]:
    """The titles of each model that has several variants."""
    models = grouped([one.variant for one in trainings], lambda variant: variant.model)
    return [[one.title for one in some] for some in models.values() if len(some) > 1]


def _notes(
    done: Mapping[Training, Row], missing: str, preset: Preset, is_bleu: bool
) -> Iterator[str]:
    if seeds := list(dict.fromkeys(one.seed for one in done))[1:]:
        yield f"The figures are of the first seed; the others are {', '.join(map(str, seeds))}."
    yield missing
    if is_bleu and len({preset.recipes[one.variant.model].joint_vocabulary for one in done}) == 2:
        yield _VOCABULARIES
    if is_bleu:
        command = "launch/local tables --scale=cpu --multi30k=FOLDER"
        yield f"Published tables beside such trainings: `{command}`."
