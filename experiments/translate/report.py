"""What the models reached: a line, files and figures of each, and one report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab.data.batching import evaluation_batches
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import figure_files, provenance
from attnlab.runs.published import read
from attnlab.tokens import lengths
from attnlab.training.bleu import (
    OF_EXACT_MATCH,
    RESAMPLINGS,
    Bucket,
    by_length,
    corpus_bleu,
    exact_match,
)
from attnlab.training.evaluation_figures import Alignment, alignment_figure, length_figure
from attnlab.training.loop import Trained
from attnlab.training.metrics_file import read_metrics
from attnlab.training.training_curve import curve, training_curve
from experiments.translate.corpus import Corpus, Tokenizers
from experiments.translate.evaluate import attention_weights, date_alignment_error, translate
from experiments.translate.recipes import Preset
from experiments.translate.systems import LOOKS, TITLES
from experiments.translate.table import Published, Row, markdown

__all__ = ["Evaluated", "environment", "evaluated", "write_report"]

# model: file, its row and column, the measure here, the paper's data
PUBLISHED = {
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


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """One model on the test split.

    Attributes:
      name: of `MODELS`.
      row: of the report.
      buckets: the measure by the length of the source.
      alignments: of a few sentences, if the model attends.
      metrics: rows of its curve.
    """

    name: str
    row: Row
    buckets: list[Bucket]
    alignments: list[Alignment]
    metrics: list[dict[str, Any]]

    def line(self) -> str:
        """For a terminal."""
        row = self.row
        found = f"BLEU {row.bleu.score:.1f}" if row.bleu else f"exact match {row.exact_match:.1%}"
        if row.alignment_error_rate is not None:
            found += f", alignment error rate {row.alignment_error_rate:.3f}"
        return f"{row.model}: {found} on the test split, {row.seconds / 60:.1f} minutes"


def evaluated(
    name: str, model: Seq2Seq, trained: Trained, corpus: Corpus, preset: Preset, folder: Path
) -> Evaluated:
    """Translates the test split, writes it to `folder` and scores it."""
    test = corpus.splits["test"]
    examples = [test[i] for i in range(len(test))]
    sources, references = ([e[side] for e in examples] for side in ("source", "target"))
    tokenizers = corpus.tokenizers(preset.recipes[name].joint_vocabulary)
    found = translate(
        model,
        trained.variables,
        corpus,
        tokenizers,
        beam_size=preset.beam_size,
        length_penalty=preset.length_penalty,
        max_length=preset.max_length + 20,
    )
    (folder / "translations.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
    metrics = read_metrics(folder)
    steps, perplexities = curve(metrics, "validation", "perplexity")
    _, rates = curve(metrics, "training", "tokens_per_second")
    is_bleu = corpus.measure == "BLEU"
    row = Row(
        model=TITLES[name],
        parameters=sum(x.size for x in jax.tree.leaves(trained.params)),
        steps=trained.steps,
        seconds=trained.seconds,
        tokens_per_second=float(np.median(rates)),
        perplexity=dict(zip(steps, perplexities, strict=True)).get(trained.step),
        bleu=corpus_bleu(found, references) if is_bleu else None,
        exact_match=None if is_bleu else exact_match(found, references),
        alignment_error_rate=date_alignment_error(model, trained.variables, corpus, tokenizers),
    )
    (folder / "result.json").write_text(json.dumps(dataclasses.asdict(row), indent=2) + "\n")
    if is_bleu:
        buckets = by_length(sources, found, references)
    else:
        edges = (8, 11, 14, 17, 20, 25, 30)
        buckets = by_length(
            sources, found, references, measure=OF_EXACT_MATCH, longest=edges, length=len
        )
    alignments = _alignments(model, trained.variables, corpus, tokenizers)
    return Evaluated(name, row, buckets, alignments, metrics)


def _alignments(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> list[Alignment]:
    if not model.attends or not corpus.drawn:
        return []
    pairs = [{"source": one.source, "target": one.target} for one in corpus.drawn]
    ((order, batch),) = evaluation_batches(pairs, *tokenizers, batch_size=len(pairs))
    weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
    made = {}
    for row, place in enumerate(order):
        source, target = batch["source"][row], batch["target"][row]
        # No step reads EOS, so that weights which follow what is read say nothing of it.
        s, t = int(lengths(source)), int(lengths(target)) - model.weights_follow_input
        made[int(place)] = Alignment(
            tokenizers.source.pieces(source[:s]),
            tokenizers.target.pieces(target[:t]),
            weights[row, :t, :s],
            known=corpus.drawn[place].known,
        )
    return [made[place] for place in range(len(pairs))]


def write_report(
    results: Sequence[Evaluated],
    corpus: Corpus,
    preset: Preset,
    folder: Path,
    *,
    published: Path,
    command: str,
) -> Path:
    """Draws the figures and writes report.md; returns its path.

    Args:
      results: of the models that are done.
      corpus: what they were trained and tested on.
      preset: with the models to come.
      folder: of the run.
      published: the folder of the papers' tables.
      command: what to type to get this report again.
    """
    is_bleu = corpus.measure == "BLEU"
    titles = {one.name: one.row.model for one in results}
    figures: dict[str, Any] = {
        "curve": training_curve({one.row.model: one.metrics for one in results}, looks=LOOKS),
        "by_length": length_figure(
            {one.row.model: one.buckets for one in results},
            looks=LOOKS,
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
    for one in results:
        if one.alignments:
            file = f"alignment_{one.name}"
            figures[file] = alignment_figure(one.alignments, title=f"{one.row.model}: weights")
            said[f"{file}.svg"] = f"Where {one.row.model} looks when it writes these targets"
    figure_files.save(figures, folder)
    search = f"beam search, {preset.beam_size} wide" if preset.beam_size > 1 else "greedy search"
    text = markdown(
        [one.row for one in results],
        title="Translation",
        task=(
            f"Data: {corpus.name}; {len(corpus.splits['test']):,} pairs of the test split, "
            f"{search}. "
            "The parameters are those with the smallest loss on the validation split."
        ),
        published=_published(titles, published) if is_bleu else (),
        command=command,
        environment=environment(),
        figures=said,
        notes=list(_notes(results, preset, is_bleu)),
    )
    (folder / "report.md").write_text(text, encoding="utf-8")
    return folder / "report.md"


def _notes(results: Sequence[Evaluated], preset: Preset, is_bleu: bool) -> Iterator[str]:
    to_come = [TITLES[name] for name in preset.models if name not in {one.name for one in results}]
    if to_come:
        yield f"Not done yet: {', '.join(to_come)}."
    if is_bleu and len({preset.recipes[one.name].joint_vocabulary for one in results}) == 2:
        yield _VOCABULARIES


def _published(titles: dict[str, str], folder: Path) -> list[Published]:
    found = []
    for name, title in titles.items():
        if name in PUBLISHED:
            file, row, column, data = PUBLISHED[name]
            table = read(folder / file)
            value = f"{table.cells[row][column]:g}"
            found.append(Published(title, value, "BLEU", data, f"{row}, {table.source}"))
    return found


def environment() -> dict[str, Any]:
    """Where a report is made: device, versions, git revision."""
    device = jax.devices()[0]
    name = provenance.processor() if device.platform == "cpu" else device.device_kind
    packages = ("jax", "flax", "optax", "grain", "sacrebleu", "sentencepiece")
    return {
        "device": f"{jax.device_count()} × {name}",
        "versions": {package: provenance.version(package) for package in packages},
        "revision": provenance.revision(),
    }
