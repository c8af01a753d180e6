"""The study `length_effect`: two models × seeds, tested on words of every length."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.tokenizers import Numbers
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import command_line, figure_files
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import FILL, MODEL_TITLES, MODELS, MUTED
from attnlab.runs.report import group
from attnlab.runs.units import spread
from attnlab.studies import command
from attnlab.studies.study import Cell, Drawn, Evaluation, Row, Study, Training
from attnlab.training.decode import greedy
from attnlab.training.loop import Task, Trained
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from experiments import length_effect
from experiments.length_effect.settings import TEST, TRAINING, VALIDATION, Settings


class LengthEffect(Study[Settings, Drawn]):
    """RNNencdec and RNNsearch of the same widths, on words of 1 to `--max_length` symbols."""

    flags = Settings
    title = "A fixed vector against attention, by length"
    axes = {"model": "models"}
    scores = {"words right": ".1%", "symbols right": ".1%"}
    shown = "task", "num_symbols", "max_length", "hidden_features", "steps", "batch_size"
    note = (
        "Words right: those without an error, by greedy search. Symbols right: 1 − edit distance /"
        " length. RNNencdec has the numbers of its encoder's last state to write a word from,"
        " however long it is; RNNsearch looks at the source again for every symbol. Test words are"
        " new. There is no column of the paper: Figure 2 of Bahdanau et al. (2014) prints no"
        " numbers. It shows BLEU over sentence length, English to French, where RNNenc falls as"
        " sentences grow and RNNsearch-50 does not."
    )

    @staticmethod
    def open(settings: Settings) -> Drawn:
        return Drawn(settings.task)

    def training(self, cell: Cell) -> Training:
        settings = self.settings
        tokenizer, longest = Numbers(settings.num_symbols + 1), settings.max_length
        batches = train_batches(
            settings.words(1, longest, TRAINING, cell.seed),
            tokenizer,
            tokenizer,
            batch_size=settings.batch_size,
            max_length=longest + 1,  # and EOS
            seed=cell.seed,
            num_workers=settings.num_workers,
        )
        size = 4 * settings.batch_size
        held_out = settings.words(1, longest, VALIDATION, cell.seed, size=size)
        validation = [
            batch
            for _, batch in evaluation_batches(
                held_out, tokenizer, tokenizer, batch_size=settings.batch_size
            )
        ]
        task = Task(
            build(cell["model"], settings), TokenCrossEntropy(), batches, lambda: validation
        )
        optimizer = OptimizerSettings(
            learning_rate=settings.learning_rate,
            schedule="linear",
            warmup_steps=min(100, settings.steps // 2),
            b2=0.98,
            clip_norm=1.0,
        )
        return Training(task, optimizer, settings.loop(seed=cell.seed))

    def evaluations(self, cell: Cell) -> list[str]:
        return [f"{length}" for length in self.settings.lengths]

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        settings = self.settings
        tokenizer, longest = Numbers(settings.num_symbols + 1), max(settings.lengths)

        def read(tokens: Any) -> list[list[str]]:
            return [tokenizer.decode(row).split() for row in np.asarray(tokens).tolist()]

        for length in settings.lengths:
            words = settings.words(length, length, TEST, cell.seed, size=settings.examples)
            ((_, batch),) = evaluation_batches(
                words,
                tokenizer,
                tokenizer,
                batch_size=settings.examples,
                pad_to=longest + 1,  # one shape, one compilation
            )
            output = greedy(
                training.task.model,
                trained.variables,
                jnp.asarray(batch["source"]),
                max_length=2 * longest + 1,
            )
            pairs = list(zip(read(output.tokens), read(batch["target"]), strict=True))
            scores = {
                "words right": float(np.mean([a == b for a, b in pairs])),
                "symbols right": float(np.mean([symbols_right(a, b) for a, b in pairs])),
            }
            yield Evaluation(scores, f"{length}", {"examples": len(pairs)})

    def answer(self, rows: Sequence[Row]) -> str:
        """The longest words of which, and of all shorter ones, each model has `ENOUGH` right."""
        said = []
        for model, by_length in _scores(rows, "words right").items():
            means = ((length, statistics.fmean(some)) for length, some in by_length.items())
            enough = list(itertools.takewhile(lambda pair: pair[1] >= ENOUGH, means))
            longest = enough[-1][0] if enough else 0
            tested = ", the longest" if len(enough) == len(by_length) else ""
            said.append(f"{longest} ({MODEL_TITLES[model]}{tested})")
        return f"longest words of which {ENOUGH:.0%} are right, in symbols: {', '.join(said)}"

    def results(self, rows: Sequence[Row]) -> str:
        """A line for each length, a column for each measure of each model."""
        columns = {
            f"{MODEL_TITLES[model]}: {measure}": scores
            for measure in MEASURES
            for model, scores in _scores(rows, measure).items()
        }
        lengths = sorted({int(row.evaluated) for row in rows})
        lines = [
            [str(n), *(spread(x[n], ".1%") if n in x else "" for x in columns.values())]
            for n in lengths
        ]
        return markdown_table(["symbols", *columns], lines)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"by_length": figure(rows, longest=self.settings.max_length)}

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        yield "![Both measures over the length of the source](by_length.svg)"
        yield "## Training"
        yield self.trainings(rows)


def build(name: str, settings: Settings) -> Seq2Seq:
    """The model of that name."""
    glorot = nn.initializers.glorot_uniform()
    vocab_size = Numbers(settings.num_symbols + 1).vocab_size
    embed, hidden = settings.embed_features, settings.hidden_features
    sizes: dict[str, Any] = {
        "embed_features": embed,
        "hidden_features": hidden,
        "maxout_features": embed,
        "use_bias": True,  # biases and Glorot's initialization learn faster than the paper's
        "kernel_init": glorot,
    }
    if name == "rnn_encdec":
        return RNNEncDec(vocab_size, vocab_size, **sizes)
    return RNNSearch(vocab_size, vocab_size, align_features=hidden, align_init=glorot, **sizes)


def symbols_right(written: Sequence[Any], wanted: Sequence[Any]) -> float:
    """1 − edit distance / length of `wanted`, at least 0.

    The edit distance is the fewest insertions, deletions and replacements (Levenshtein 1966), so
    that one symbol left out costs one symbol, not all that follow.

    Cost: O(T·S).

    >>> symbols_right("4 1 9 9".split(), "4 9 9 2".split())
    0.5
    """
    distances = list(range(len(wanted) + 1))
    for i, a in enumerate(written, 1):
        diagonal, distances[0] = distances[0], i
        for j, b in enumerate(wanted, 1):
            best = min(diagonal + (a != b), distances[j] + 1, distances[j - 1] + 1)
            diagonal, distances[j] = distances[j], best
    return max(0.0, 1 - distances[-1] / len(wanted))


ENOUGH = 0.9  # the share of words without an error that counts as enough
MEASURES = ("words right", "symbols right")


def _scores(rows: Sequence[Row], measure: str) -> dict[str, dict[int, list[float]]]:
    """The scores of all seeds, by model and length; lengths rise."""
    ordered = sorted(rows, key=lambda row: int(row.evaluated))
    return {
        model: {
            length: [row.scores[measure] for row in seeds]
            for length, seeds in group(some, lambda row: int(row.evaluated)).items()
        }
        for model, some in group(ordered, lambda row: row.cell["model"]).items()
    }


def figure(rows: Sequence[Row], *, longest: int) -> Figure:
    """Both measures over length, a line per model; shaded: longer than any word in training."""
    with figure_files.style():
        drawn = Figure(figsize=(8.2, 3.4), layout="constrained")
        panels = drawn.subplots(1, len(MEASURES), sharex=True, sharey=True)
        last = max(int(row.evaluated) for row in rows)
        for axes, measure in zip(panels, MEASURES, strict=True):
            for model, scores in _scores(rows, measure).items():
                (color, marker), seeds = MODELS[model], scores.values()
                axes.plot(
                    list(scores), [*map(statistics.fmean, seeds)], color=color, marker=marker,
                    markersize=5, linewidth=1.6, label=MODEL_TITLES[model], clip_on=False,
                )  # fmt: skip
                axes.vlines(list(scores), [*map(min, seeds)], [*map(max, seeds)], color=color)
            if last > longest:
                axes.axvspan(longest + 0.5, last + 1, color=FILL, linewidth=0, zorder=0)
                axes.text(longest + 0.8, 0.45, "longer than\nin training", color=MUTED, fontsize=8)
            axes.set_title(measure)
            axes.set_xlabel("length of the source (symbols)")
            axes.grid(axis="y")
        panels[0].set_xlim(0, last + 1)
        panels[0].set_ylim(0, 1.03)
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        handles, labels = panels[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper right", ncols=2, edgecolor="none")
    return drawn


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, LengthEffect, length_effect)


if __name__ == "__main__":
    command_line.start(main)
