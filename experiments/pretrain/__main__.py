"""The study `pretrain`: objectives × maskings × seeds, tested on the same masks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from attnlab.data.masking import Masking, fixed_batches, masked_batches, statistics
from attnlab.models.bert import BertPretraining
from attnlab.runs import command_line, processes
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import grouped
from attnlab.training import study
from attnlab.training.loop import Task, Trained
from attnlab.training.masked import MaskedCrossEntropy
from attnlab.training.pretrained import Pretrained, write
from attnlab.training.study import Cell, Evaluation, Row, Study, Training
from experiments import pretrain
from experiments.pretrain.corpus import Corpus, open_corpus
from experiments.pretrain.settings import Settings

__all__ = ["Pretrain", "main"]

COUNTED = 50  # batches whose masks are counted for the report


class Pretrain(Study[Settings, Corpus]):
    """BERT on a text; each model is kept for `finetune`."""

    flags = Settings
    title = "BERT's pre-training"
    axes = {"objective": "objective", "masking": "masking"}
    scores = {"masked accuracy": ".1%", "masked nll": ".3f", "pair accuracy": ".1%"}
    curve = "masked_nll", "−log p (nats a masked token)"
    note = (
        "Scores are of the held-out documents, which all have the same pairs and masks, 80/10/10;"
        " nll is −log p in nats. `mlm` reads the same pairs, and leaves the second loss out."
    )
    shown = "length", "attention", "num_layers", "width", "steps", "batch_size"
    packages = "optax", "grain", "sentencepiece"
    open = staticmethod(open_corpus)

    def training(self, cell: Cell) -> Training:
        settings, corpus = self.settings, self.data
        config, attention = settings.sizes().build(corpus.tokenizer.vocab_size + 1)
        held_out = fixed_batches(corpus.pairs(settings), batch_size=settings.batch_size)
        validation = [self.part.of(batch) for batch in held_out]
        begun = corpus.starts.get(cell.seed, next(iter(corpus.starts.values()), None))
        task = Task(
            BertPretraining(config, attention),
            MaskedCrossEntropy(next_sentence=cell["objective"] == "mlm_nsp"),
            masked_batches(
                corpus.pairs(settings, _masking(cell)),
                batch_size=settings.batch_size,
                seed=cell.seed,
                part=self.part,
            ),
            lambda: validation,
            {"tokenizer": corpus.tokenizer.digest, "start": begun and begun.digest},
            streams=settings.sizes().streams,
            start=None if begun is None else lambda drawn: jax.tree.map(np.asarray, begun.params),
        )
        return Training(task, settings.optimizer(), settings.loop(seed=cell.seed))

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        settings, corpus = self.settings, self.data
        made = Pretrained(cell.title, cell.seed, settings.sizes(), corpus.tokenizer, trained.params)
        if processes.is_first():
            write(made, place)
        names = {"masked accuracy": "masked_accuracy", "masked nll": "masked_nll"}
        if cell["objective"] == "mlm_nsp":
            names["pair accuracy"] = "next_accuracy"
        pairs = corpus.pairs(settings, _masking(cell))
        batches = masked_batches(pairs, batch_size=settings.batch_size, seed=cell.seed)
        shares = statistics(itertools.islice(iter(batches), COUNTED), corpus.tokenizer.vocab_size)
        yield Evaluation(
            {name: trained.validation[x] for name, x in names.items()}, details={"shares": shares}
        )

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        yield "## What was masked"
        yield (
            "Of the first batches: the share of tokens that is predicted, and what became of those."
            " A random word that is the same one by chance counts as that. Rows are short, so that"
            " 15 % in whole tokens is seldom 15 %."
        )
        names = ("predicted", "mask", "same", "random", "next")
        header = ["masking", "predicted", "[MASK]", "same", "random", "second segment follows"]
        shares = {
            masking: some[0].details["shares"]
            for masking, some in grouped(rows, lambda row: row.cell["masking"]).items()
        }
        yield markdown_table(
            header, [[x, *(f"{some[name]:.1%}" for name in names)] for x, some in shares.items()]
        )


def _masking(cell: Cell) -> Masking:
    return Masking(*map(int, cell["masking"].split("/")))


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return study.main(argv, Pretrain, pretrain)


if __name__ == "__main__":
    command_line.start(main)
