"""The study `length_effect`: two models × seeds, tested on words of every length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.tokenizers import Numbers
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import command_line
from attnlab.training import study
from attnlab.training.decode import greedy
from attnlab.training.loop import Task, Trained
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.study import Cell, Drawn, Evaluation, Row, Study, Training
from experiments import length_effect
from experiments.length_effect import report
from experiments.length_effect.settings import TEST, TRAINING, VALIDATION, Settings

__all__ = ["LengthEffect", "main", "symbols_right"]


class LengthEffect(Study[Settings, Drawn]):
    """RNNencdec and RNNsearch of the same sizes, on words of 1 to `--max_length` symbols."""

    flags = Settings
    title = "A fixed vector against attention, by length"
    axes = {"model": "models"}
    scores = {"words right": ".1%", "symbols right": ".1%"}
    shown = "task", "num_symbols", "max_length", "hidden_features", "steps", "batch_size"
    note = (
        "Words right: those without an error, by greedy search. Symbols right: 1 − edit distance /"
        " length. RNNencdec has the numbers of its encoder's last state to write a word from,"
        " however long it is; RNNsearch looks at the source again for every symbol. Test words are"
        " new. The paper's column is blank because Figure 2 of Bahdanau et al. (2014) prints no"
        " numbers: it shows BLEU over sentence length, English to French, where RNNenc falls as"
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
        tokenizer, longest = Numbers(settings.num_symbols + 1), settings.lengths[-1]
        for length in settings.lengths:
            words = settings.words(length, length, TEST, cell.seed, size=settings.examples)
            ((_, batch),) = evaluation_batches(
                words,
                tokenizer,
                tokenizer,
                batch_size=settings.examples,
                pad_to=longest + 1,  # one shape, one compilation
            )
            found = greedy(
                training.task.model,
                trained.variables,
                jnp.asarray(batch["source"]),
                max_length=2 * longest + 1,
            )
            wanted, written = (
                [tokenizer.decode(row).split() for row in np.asarray(tokens).tolist()]
                for tokens in (batch["target"], found.tokens)
            )
            pairs = list(zip(written, wanted, strict=True))
            scores = {
                "words right": float(np.mean([a == b for a, b in pairs])),
                "symbols right": float(np.mean([symbols_right(a, b) for a, b in pairs])),
            }
            yield Evaluation(scores, f"{length}", {"examples": len(pairs)})

    def answer(self, rows: Sequence[Row]) -> str:
        return report.answer(rows)

    def results(self, rows: Sequence[Row]) -> str:
        return report.by_length(rows)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"by_length": report.figure(rows, longest=self.settings.max_length)}

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        yield "![Both measures over the length of the source](by_length.svg)"
        yield "## Training"
        one = [row for row in rows if row.evaluated == rows[0].evaluated]
        yield super().results([dataclasses.replace(row, evaluated="", scores={}) for row in one])


def build(name: str, settings: Settings) -> Seq2Seq:
    """The model of that name.

    Args:
      name: name of the model.
      settings: settings of the run, with the widths and the number of symbols.
    """
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


def symbols_right(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """1 − edit distance / length of `wanted`, at least 0.

    The edit distance is the fewest insertions, deletions and replacements (Levenshtein 1966), so
    that one symbol left out costs one symbol, not all that follow.

    Cost: O(T·S).

    >>> symbols_right("4 1 9 9".split(), "4 9 9 2".split())
    0.5
    """
    distances = list(range(len(wanted) + 1))
    for i, a in enumerate(found, 1):
        diagonal, distances[0] = distances[0], i
        for j, b in enumerate(wanted, 1):
            best = min(diagonal + (a != b), distances[j] + 1, distances[j - 1] + 1)
            diagonal, distances[j] = distances[j], best
    return max(0.0, 1 - distances[-1] / len(wanted))


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return study.main(argv, LengthEffect, length_effect)


if __name__ == "__main__":
    command_line.start(main)
