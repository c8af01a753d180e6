"""The examples of each task, as token ids and labels, in three splits."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from attnlab.core.tokens import BOS, NUM_SPECIAL, UNK
from attnlab.data import listops
from attnlab.data.batching import filled_batches
from attnlab.data.labelled import classes_of, read_labelled
from attnlab.data.listops import ListOps
from attnlab.data.tasks import KeyMatching
from attnlab.data.tfds_source import open_tfds
from attnlab.data.tokenizers import Bytes
from attnlab.runs.errors import Invalid
from experiments.long_range.settings import Settings

Source = Any  # random access: len() and [i] → an example of strings
_CLS, _MASK = BOS, UNK  # no input has an unknown token


@dataclasses.dataclass(frozen=True)
class Examples:
    """A task's examples.

    Attributes:
      splits: (seed) → examples of the splits "train", "validation", "test"; the last two are those
        of every seed.
      encode: (example) → {"tokens": ids [T] or [2, T], "label": class}.
      vocab_size: number of ids.
      num_classes: number of classes.
      digest: words that tell these examples, of all splits, from others; goes into checkpoints.
    """

    splits: Callable[[int], Mapping[str, Source]]
    encode: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
    vocab_size: int
    num_classes: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The examples of all tasks, by name."""

    examples: Mapping[str, Examples]

    @property
    def name(self) -> str:
        """Their names."""
        return ", ".join(self.examples)

    @property
    def digest(self) -> str:
        """One hash of all of them."""
        digests = {name: one.digest for name, one in self.examples.items()}
        return hashlib.sha256(str(digests).encode()).hexdigest()


def open_tasks(settings: Settings) -> Tasks:
    """The examples of the settings' tasks.

    Raises:
      Invalid: a file without labels, or one with a label that was not in training.
    """
    ways = {"listops": _listops, "retrieval": _retrieval, "text": _text}
    return Tasks({name: ways[name](settings) for name in settings.tasks})


def _listops(settings: Settings) -> Examples:
    most = settings.length - 1

    def encode(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return _encode([_row(listops.encode(example["text"]), settings)], example["label"])

    return Examples(
        _draw(lambda **of: ListOps(settings.min_length, most, **of), settings),
        encode,
        NUM_SPECIAL + len(listops.VOCABULARY),
        listops.CLASSES,
        f"listops {settings.min_length} {most}",
    )


def _retrieval(settings: Settings) -> Examples:
    most = settings.length - 1

    def encode(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
        sides = [_row(Bytes().encode(example[name]), settings) for name in ("first", "second")]
        return _encode(sides, example["label"])

    return Examples(
        _draw(lambda **of: KeyMatching(most, **of), settings),
        encode,
        Bytes().vocab_size,
        2,
        f"retrieval {most}",
    )


def _text(settings: Settings) -> Examples:
    splits = _of_tfds(settings) if settings.tfds_name else _of_files(settings)
    classes = classes_of(splits)
    written = [
        f"{name}\t{row['label']}\t{row['text']}" for name, rows in splits.items() for row in rows
    ]

    def encode(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
        row = _row(Bytes().encode(example["text"]), settings)
        return _encode([row], classes.index(example["label"]))

    digest = hashlib.sha256("\n".join(written).encode()).hexdigest()
    return Examples(lambda seed: splits, encode, Bytes().vocab_size, len(classes), digest)


def _draw(make: Callable[..., Source], settings: Settings) -> Callable[[int], dict[str, Source]]:
    """Splits that are drawn; those of tests are the same for every seed, and no training's."""
    tests = {
        name: make(seed=part, size=settings.test_examples)
        for part, name in enumerate(("validation", "test"))
    }
    return lambda seed: {"train": make(seed=2 + seed), **tests}


def _of_files(settings: Settings) -> dict[str, Sequence[dict[str, str]]]:
    assert settings.train_file and settings.test_file
    train = read_labelled(Path(settings.train_file))
    if settings.validation_file:
        validation = read_labelled(Path(settings.validation_file))
    else:
        validation = train[9::10]  # not the last ones: a file may be sorted by its labels
        if not validation:
            raise Invalid(
                f"--train_file={settings.train_file}: of {len(train)} examples a tenth is none; "
                "give --validation_file"
            )
        train = [row for i, row in enumerate(train) if i % 10 != 9]
    test = read_labelled(Path(settings.test_file))
    return {"train": train, "validation": validation, "test": test}


def _of_tfds(settings: Settings) -> dict[str, Sequence[dict[str, str]]]:
    assert settings.tfds_name
    parts = {"train": "train[:90%]", "validation": "train[90%:]", "test": "test"}
    found: dict[str, Sequence[dict[str, str]]] = {}
    for name, split in parts.items():
        source = open_tfds(
            settings.tfds_name,
            split=split,
            data_dir=Path(os.path.expanduser(settings.data_dir)),
            features={"text": "text", "label": "label"},
        )
        found[name] = [source[i] for i in range(len(source))]
    return found


def _row(ids: Sequence[int], settings: Settings) -> np.ndarray:
    """[CLS] and ids, cut off and padded."""
    kept = np.array([_CLS, *ids][: settings.length], np.int32)
    return np.pad(kept, (0, settings.length - len(kept)))


def _encode(rows: Sequence[np.ndarray], label: int) -> dict[str, np.ndarray]:
    tokens = rows[0] if len(rows) == 1 else np.stack(rows)
    return {"tokens": tokens, "label": np.asarray(label, np.int32)}


def mask_tokens(
    example: Mapping[str, np.ndarray], share: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """An example of masked tokens: the label of each is the token, of all others −1.

    Args:
      example: {"tokens": ids [*T]}.
      share: share of the tokens, but [CLS] and padding, that [MASK] replaces; one at least.
      rng: random numbers.
    """
    tokens = example["tokens"]
    words = np.flatnonzero(tokens >= NUM_SPECIAL)
    chosen = rng.permutation(words)[: max(1, round(share * len(words)))]
    label, hidden = np.full_like(tokens, -1), tokens.copy()
    label.flat[chosen], hidden.flat[chosen] = tokens.flat[chosen], _MASK
    return {"tokens": hidden, "label": label}


def batches(
    examples: Examples, seed: int, batch_size: int, mask_share: float | None = None
) -> grain.IterDataset:
    """Endless batches of the training split, shuffled; with a share, of masked tokens."""
    source = grain.MapDataset.source(examples.splits(seed)["train"])
    order = source.seed(seed).shuffle().repeat().map(examples.encode)
    if mask_share is not None:
        order = order.random_map(lambda example, rng: mask_tokens(example, mask_share, rng))
    return order.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads=0))


def fixed_batches(
    examples: Examples, split: str, batch_size: int, mask_share: float | None = None
) -> list[dict[str, np.ndarray]]:
    """All of "validation" or "test", with a share as examples of masked tokens, always the same.

    The last batch is filled with rows that do not count.
    """
    source = examples.splits(0)[split]
    rows = [examples.encode(source[i]) for i in range(len(source))]
    if mask_share is not None:
        rows = [
            mask_tokens(row, mask_share, np.random.default_rng(i)) for i, row in enumerate(rows)
        ]
    empty = {
        "tokens": np.zeros_like(rows[0]["tokens"]),
        "label": np.full_like(rows[0]["label"], -1),
    }
    return list(filled_batches(rows, empty, batch_size))


def majority(test: Sequence[Mapping[str, np.ndarray]]) -> float:
    """The share of the most frequent class, which says nothing of an input."""
    labels = np.concatenate([batch["label"] for batch in test])
    return float(np.bincount(labels[labels >= 0]).max() / (labels >= 0).sum())
