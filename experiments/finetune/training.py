"""The trainings of a run: the models that they start from, and one training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.models.bert import BertClassifier
from attnlab.runs.errors import Invalid
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.loop import Task
from attnlab.training.pretrained import Pretrained, make_tokenizer, read
from experiments.finetune.data import Data, in_order, shuffled
from experiments.finetune.examples import Span, Tagged
from experiments.finetune.score import of_classes, of_spans, of_tags
from experiments.finetune.settings import Settings

__all__ = [
    "Cell",
    "basis",
    "cells",
    "num_steps",
    "open_models",
    "predict",
    "score",
    "task",
]

_LABELLED = {"classify": "sequence", "tag": "tokens", "span": "span"}


class Cell(NamedTuple):
    """One training, and the key of its row.

    Attributes:
      start: "tuned", "frozen" or "scratch".
      pretraining: title of the pre-training; "" of a model from scratch.
      seed: seed of the training.
    """

    start: str
    pretraining: str
    seed: int

    @property
    def title(self) -> str:
        """The name in reports, without the seed."""
        return f"{self.start}: {self.pretraining}" if self.pretraining else self.start

    def __str__(self) -> str:
        return f"{self.title}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of the training's folder in that of the run."""
        name = "".join(c if c.isalnum() else "-" for c in self.pretraining)
        return "-".join(filter(None, [self.start, name, f"seed{self.seed}"]))


def open_models(settings: Settings) -> dict[str, dict[int, Pretrained]]:
    """The pre-trained models, by title and by the seed that they were trained with.

    Raises:
      Invalid: two have another vocabulary, so that their scores are not of the same tokens, or
        other sizes.
    """
    found: dict[str, dict[int, Pretrained]] = {}
    first: tuple[str, Pretrained] | None = None
    for folder in settings.init_from:
        for one in read(Path(folder)):
            first = first or (folder, one)
            if one.tokenizer.digest != first[1].tokenizer.digest or one.sizes != first[1].sizes:
                raise Invalid(
                    f"--init_from={folder}: a checkpoint of another vocabulary, or of other sizes, "
                    f"than {first[0]} has; compare models that read alike"
                )
            if one.seed in found.setdefault(one.title, {}):
                raise Invalid(f"--init_from={folder}: {one.title}, seed {one.seed} comes twice")
            found[one.title][one.seed] = one
    return found


def cells(settings: Settings, models: dict[str, dict[int, Pretrained]]) -> list[Cell]:
    """The trainings of a run.

    Raises:
      Invalid: a model was not pre-trained with a seed, and with several others.
    """
    for title, by_seed in models.items():
        missing = [seed for seed in settings.seeds if seed not in by_seed]
        if missing and len(by_seed) > 1:
            raise Invalid(
                f"--seeds={missing[0]}: {title} was pre-trained with the seeds "
                f"{', '.join(map(str, by_seed))}; give some of them"
            )
    return [
        Cell(start, title, seed)
        for start in settings.started()
        for title in ([""] if start == "scratch" else models)
        for seed in settings.seeds
    ]


def basis(
    settings: Settings, models: dict[str, dict[int, Pretrained]], cell: Cell, texts: Sequence[str]
) -> Pretrained:
    """What a cell begins with: sizes, tokenizer, and parameters unless it is from scratch."""
    if cell.pretraining:
        by_seed = models[cell.pretraining]
        return by_seed.get(cell.seed) or next(iter(by_seed.values()))
    if models:
        return dataclasses.replace(next(iter(next(iter(models.values())).values())), params=None)
    tokenizer = make_tokenizer(
        settings.tokenizer, texts, vocab_size=settings.vocab_size, cache_dir=settings.cache_dir
    )
    return Pretrained("", 0, settings.sizes(), tokenizer)


def task(cell: Cell, settings: Settings, data: Data, start: Pretrained) -> Task[BertClassifier]:
    """Model, objective and batches of a training."""
    config, attention = start.sizes.build(start.vocab_size)
    model = BertClassifier(
        config,
        max(len(data.labels), 2),
        _LABELLED[settings.kind],
        attention,
        frozen=cell.start == "frozen",
    )
    identity: dict[str, Any] = {
        **cell._asdict(),
        "examples": data.digest,
        "labels": list(data.labels),
        "tokenizer": start.tokenizer.digest,
        "sizes": dataclasses.asdict(start.sizes),
        "start": start.digest,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "frozen_learning_rate": settings.frozen_learning_rate,
        "steps": num_steps(settings, data),
    }
    return Task(
        model,
        ClassCrossEntropy(),
        shuffled(data.rows["train"], data.length, settings.batch_size, cell.seed),
        lambda: in_order(data.rows["dev"], data.length, settings.batch_size),
        identity,
        streams=start.sizes.streams,
        start=None if start.params is None else start.encoder,
    )


def num_steps(settings: Settings, data: Data) -> int:
    """The number of steps of a training."""
    an_epoch = -(-len(data.rows["train"]) // settings.batch_size)
    return settings.steps or settings.epochs * an_epoch


def predict(model: BertClassifier, variables: Any, data: Data, batch_size: int) -> np.ndarray:
    """The logits of the test examples."""
    apply = jax.jit(lambda v, tokens, types: model.apply(v, tokens, types))
    found = [
        np.asarray(apply(variables, jnp.asarray(batch["tokens"]), jnp.asarray(batch["types"])))
        for batch in in_order(data.rows["test"], data.length, batch_size)
    ]
    return np.concatenate(found)[: len(data.rows["test"])]


def score(kind: str, logits: np.ndarray, data: Data) -> dict[str, float]:
    """What of the test examples is right, by name; the first is the task's own measure."""
    rows = data.rows["test"]
    if kind == "classify":
        return of_classes(logits, rows)
    if kind == "tag":
        short = [x[: len(row.tokens)] for x, row in zip(logits, rows, strict=True)]
        tagged = [one for one in data.examples["test"] if isinstance(one, Tagged)]
        return of_tags(short, rows, tagged, data.labels)
    short = [x[:, : len(row.tokens)] for x, row in zip(logits, rows, strict=True)]
    spans = [one for one in data.examples["test"] if isinstance(one, Span)]
    return of_spans(short, rows, spans)
