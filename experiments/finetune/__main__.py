"""The study `finetune`: what a model starts from × seeds, tested on one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import own
from attnlab.models.bert import BertClassifier
from attnlab.runs import command_line
from attnlab.training import study
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.loop import Task, Trained
from attnlab.training.study import Cell, Evaluation, Row, Study, Training
from experiments import finetune
from experiments.finetune import report
from experiments.finetune.data import Data, in_order, open_data, shuffled
from experiments.finetune.score import scores_of
from experiments.finetune.settings import Settings

__all__ = ["Finetune", "main"]

_LABELLED = {"classify": "sequence", "tag": "tokens", "span": "span"}


class Finetune(Study[Settings, Data]):
    """A pre-trained BERT, all of it or a classifier on its states, beside one from scratch."""

    flags = Settings
    title = "Fine-tuning of BERT"
    axes = {"start": "starts", "pretraining": "init_from"}
    scores = {"f1": ".1%", "exact match": ".1%", "accuracy": ".1%"}
    curve = "loss", "−log p (nats an example)"
    note = (
        "Scores are of the test examples, with the parameters that have the smallest loss of the"
        " dev examples. `tuned` trains all of a pre-trained model, `frozen` a classifier on its"
        " states, `scratch` a model of the same sizes that was not pre-trained. Where several"
        " seeds begin with one pre-training, ± is that of the tuning, and says nothing of another"
        " pre-training."
    )
    packages = "optax", "grain", "sentencepiece"
    open = staticmethod(open_data)

    def cells(self) -> list[Cell]:
        return [
            Cell({"start": start, "pretraining": title}, seed)
            for seed in self.settings.seeds
            for start in self.settings.started()
            for title in ([""] if start == "scratch" else self.data.models)
        ]

    def training(self, cell: Cell) -> Training:
        settings, data = self.settings, self.data
        start = data.start(cell["pretraining"], cell.seed)
        config, attention = start.sizes.build(start.vocab_size)
        frozen = cell["start"] == "frozen"
        classes = max(len(data.labels), 2)
        sources = {"own": x} if (x := own.digests(start.sizes.attention)) else {}
        kind = _LABELLED[settings.kind]
        model = BertClassifier(config, classes, kind, attention, frozen=frozen)
        validation = in_order(data.rows["dev"], data.length, settings.batch_size)
        task = Task(
            model,
            ClassCrossEntropy(),
            shuffled(data.rows["train"], data.length, settings.batch_size, cell.seed),
            lambda: validation,
            {"tokenizer": start.tokenizer.digest, "start": start.digest, **sources},
            streams=start.sizes.streams,
            start=None if start.params is None else start.encoder,
        )
        an_epoch = -(-len(data.rows["train"]) // settings.batch_size)
        steps = settings.steps or settings.epochs * an_epoch
        validate_every = settings.validate_every or max(1, steps // 5)
        loop = settings.loop(steps=steps, validate_every=validate_every, seed=cell.seed)
        return Training(task, settings.optimizer(frozen=frozen, steps=steps), loop)

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        logits = predict(
            training.task.model, trained.variables, self.data, self.settings.batch_size
        )
        begun = self.data.start(cell["pretraining"], cell.seed)
        details = {"pretraining_seed": begun.seed} if cell["pretraining"] else {}
        yield Evaluation(scores_of(self.settings.kind, logits, self.data), details=details)

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        seeds = {x for row in rows if (x := row.details.get("pretraining_seed")) is not None}
        return {"pre-trainings": f"{len(seeds)}" if seeds else ""}

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        return report.sections(rows, self.measures(rows)[0])

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"scores": report.figure(rows, self.measures(rows)[0])}


def predict(model: BertClassifier, variables: Any, data: Data, batch_size: int) -> np.ndarray:
    """The logits of the test examples."""
    apply = jax.jit(lambda v, tokens, types: model.apply(v, tokens, types))
    found = [
        np.asarray(apply(variables, jnp.asarray(batch["tokens"]), jnp.asarray(batch["types"])))
        for batch in in_order(data.rows["test"], data.length, batch_size)
    ]
    return np.concatenate(found)[: len(data.rows["test"])]


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return study.main(argv, Finetune, finetune)


if __name__ == "__main__":
    command_line.start(main)
