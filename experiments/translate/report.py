"""The report over the rows: figures of the training, of where each model looks, and by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs import palette
from attnlab.runs.loop import Report
from attnlab.runs.published import read
from attnlab.training.bleu import RESAMPLINGS
from attnlab.training.evaluation_figures import alignment_figure, length_figure
from attnlab.training.metrics_file import read_metrics
from attnlab.training.training_curve import training_curve
from experiments.translate import drawn
from experiments.translate.corpus import Corpus
from experiments.translate.recipes import Preset
from experiments.translate.table import Published, Row, markdown, results

__all__ = ["report"]

PUBLISHED = Path(__file__).parents[1] / "published"
# model: file, its row and column, the paper's data
_PUBLISHED = {
    "rnn_encdec": ("bahdanau2014_table1.csv", "RNNencdec-50", "BLEU_all", "WMT14 En-Fr"),
    "rnn_search": ("bahdanau2014_table1.csv", "RNNsearch-50", "BLEU_all", "WMT14 En-Fr"),
    "luong": (
        "luong2015_table1.csv",
        "Base + reverse + dropout + local-p (general) + feed",
        "BLEU_tokenized",
        "WMT14 En-De",
    ),
    "transformer": ("vaswani2017_table2.csv", "Transformer (base)", "BLEU_EN_DE", "WMT14 En-De"),
}

_VOCABULARIES = (
    "The Transformer's source and target share one vocabulary, those of the other models have one "
    "each: compare the BLEU of the two kinds, not their losses and perplexities, which are means "
    "over tokens of different lengths."
)


def report(
    done: dict[str, Row], corpus: Corpus, preset: Preset, folder: Path, *, command: str, where: str
) -> Report:
    """Draws the figures and writes the tables.

    Args:
      done: the rows of the models that are done, by their names.
      corpus: what they were trained and tested on.
      preset: with the models to come.
      folder: of the run.
      command: what to type to get this report again.
      where: the table of where the rows were measured.
    """
    rows = list(done.values())
    is_bleu = corpus.measure == "BLEU"
    looks = {row.model: palette.MODELS[name] for name, row in done.items()}
    figures: dict[str, Any] = {
        "curve": training_curve(
            {row.model: read_metrics(folder / name) for name, row in done.items()}, looks=looks
        ),
        "by_length": length_figure(
            {row.model: row.buckets for row in rows},
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
    for name, row in done.items():
        if alignments := drawn.read(folder / name):
            file = f"alignment_{name}"
            figures[file] = alignment_figure(alignments, title=f"{row.model}: weights")
            said[f"{file}.svg"] = f"Where {row.model} looks when it writes these targets"
    search = f"beam search, {preset.beam_size} wide" if preset.beam_size > 1 else "greedy search"
    text = markdown(
        rows,
        title="Translation",
        task=(
            f"Data: {corpus.name}; {len(corpus.splits['test']):,} pairs of the test split, "
            f"{search}. "
            "The parameters are those with the smallest loss on the validation split."
        ),
        published=_published(done) if is_bleu else (),
        command=command,
        where=where,
        figures=said,
        notes=list(_notes(list(done), preset, is_bleu)),
    )
    return Report(text, figures, said=results(rows))


def _notes(done: Sequence[str], preset: Preset, is_bleu: bool) -> Iterator[str]:
    to_come = [palette.MODEL_TITLES[name] for name in preset.models if name not in done]
    if to_come:
        yield f"Not done yet: {', '.join(to_come)}."
    if is_bleu and len({preset.recipes[name].joint_vocabulary for name in done}) == 2:
        yield _VOCABULARIES


def _published(done: dict[str, Row]) -> list[Published]:
    found = []
    for name, row in done.items():
        if name in _PUBLISHED:
            file, line, column, data = _PUBLISHED[name]
            table = read(PUBLISHED / file)
            value = f"{table.cells[line][column]:g}"
            found.append(Published(row.model, value, "BLEU", data, f"{line}, {table.source}"))
    return found
