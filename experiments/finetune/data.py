"""The examples of a run, as they are and as a model sees them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grain
import numpy as np

from attnlab.training.pretrained import Pretrained
from experiments.finetune import examples, made
from experiments.finetune.encode import Encoded, Encoder, labels_of, stacked
from experiments.finetune.examples import Classified, Example, Span, Tagged
from experiments.finetune.settings import Settings

__all__ = [
    "Data",
    "digest_of_examples",
    "encoded",
    "in_order",
    "open_data",
    "shuffled",
    "texts_of",
]

SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples of a run, in three splits, as they are and as a model sees them."""

    labels: tuple[str, ...]
    examples: dict[str, list[Example]]
    rows: dict[str, list[Encoded]]

    @property
    def length(self) -> int:
        """The number of tokens of a row in a batch."""
        longest = max(len(row.tokens) for rows in self.rows.values() for row in rows)
        return -(-longest // 8) * 8

    @property
    def digest(self) -> str:
        """One hash of all tokens and labels."""
        total = hashlib.sha256()
        for rows in self.rows.values():
            for row in rows:
                total.update(row.tokens.tobytes() + row.label.tobytes())
        return total.hexdigest()


def open_data(settings: Settings) -> dict[str, list[Example]]:
    """The examples of each split.

    Raises:
      Invalid: a file is missing, or of another shape.
    """
    if settings.made is not None:
        assert settings.input is not None
        return made.examples(
            settings.made,
            Path(settings.input),
            train=settings.train_examples,
            test=settings.test_examples,
            held_out=settings.held_out,
        )
    return {
        split: examples.read(settings.kind, settings.path_of(split), settings.columns)
        for split in SPLITS
    }


def digest_of_examples(given: Mapping[str, Sequence[Example]]) -> str:
    """One hash of the examples of all splits, wherever their files are."""
    total = hashlib.sha256()
    for name, some in given.items():
        for one in some:
            total.update(f"{name} {dataclasses.replace(one, where='')}\n".encode())
    return total.hexdigest()


def texts_of(some: Sequence[Example]) -> list[str]:
    """The texts that a tokenizer is trained on."""
    found: list[str] = []
    for one in some:
        match one:
            case Classified():
                found += one.texts
            case Tagged():
                found.append(" ".join(one.words))
            case Span():
                found += (one.question, one.context)
    return found


def encoded(settings: Settings, given: dict[str, list[Example]], start: Pretrained) -> Data:
    """The examples as a model sees them.

    Raises:
      Invalid: one is too long, or has a label that was not in training.
    """
    labels = labels_of(given["train"])
    encode = Encoder(start.tokenizer, start.sizes.max_length, labels, settings.cut)
    rows = {name: [encode(one) for one in some] for name, some in given.items()}
    return Data(labels, given, rows)


def shuffled(rows: Sequence[Encoded], length: int, batch_size: int, seed: int) -> grain.IterDataset:
    """Endless batches, shuffled anew in every epoch."""
    order = grain.MapDataset.range(len(rows)).seed(seed).shuffle().repeat()
    one = order.map(lambda i: {k: x[0] for k, x in stacked([rows[i]], length, 1).items()})
    return one.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads=0))


def in_order(rows: Sequence[Encoded], length: int, batch_size: int) -> list[dict[str, np.ndarray]]:
    """All rows once; the last batch is filled with rows without a label."""
    return [
        stacked(rows[i : i + batch_size], length, batch_size)
        for i in range(0, len(rows), batch_size)
    ]
