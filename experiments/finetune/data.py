"""Inputs of a run: examples, as they are and as a model sees them, and models."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grain
import numpy as np

from attnlab.core.tokens import PAD
from attnlab.data.batching import filled_batches
from attnlab.data.labelled import require_classes
from attnlab.runs.errors import Invalid
from attnlab.training.pretrained import Pretrained, make_tokenizer, read
from experiments.finetune import examples as files
from experiments.finetune import made
from experiments.finetune.encode import NONE, Encoded, Encoder, labels_of, pad
from experiments.finetune.examples import Classified, Example, Span, Tagged
from experiments.finetune.settings import Settings

SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples of a run in three splits, and the models that it begins with.

    Attributes:
      name: name of the task or file.
      labels: names of the classes or tags.
      examples: examples of each split, as they are.
      rows: examples of each split, as all models see them.
      models: pre-trained models, by title and by the seed that they were trained with.
      scratch: sizes and tokenizer of a model that was not pre-trained.
    """

    name: str
    labels: tuple[str, ...]
    examples: Mapping[str, Sequence[Example]]
    rows: Mapping[str, Sequence[Encoded]]
    models: Mapping[str, Mapping[int, Pretrained]]
    scratch: Pretrained

    def start(self, pretraining: str, seed: int) -> Pretrained:
        """The model of a pre-training, by its title, with that seed or its only one."""
        if not pretraining:
            return self.scratch
        by_seed = self.models[pretraining]
        return by_seed.get(seed) or next(iter(by_seed.values()))

    @property
    def length(self) -> int:
        """The number of tokens of a row in a batch: a multiple of 8, or all that a model takes."""
        longest = max(len(row.tokens) for rows in self.rows.values() for row in rows)
        return min(-(-longest // 8) * 8, self.scratch.sizes.max_length)

    @property
    def digest(self) -> str:
        """One hash of the examples of all splits, wherever their files are, and of the models."""
        total = hashlib.sha256()
        for title, by_seed in self.models.items():
            for seed, model in by_seed.items():
                total.update(f"{title} {seed} {model.digest}\n".encode())
        for name, some in self.examples.items():
            for one in some:
                total.update(f"{name} {dataclasses.replace(one, where='')}\n".encode())
        return total.hexdigest()


def open_data(settings: Settings) -> Data:
    """The models and the examples of the settings.

    Raises:
      Invalid: a file is missing, or of another shape; an example is too long, or has a label that
        was not in training, or training has one label alone; two models read other tokens, so that
        their scores do not compare, or have other sizes, or none has a seed.
    """
    models = _open_models(settings)
    examples = _open_examples(settings)
    if models:
        first = next(iter(next(iter(models.values())).values()))
        scratch = dataclasses.replace(first, params=None)
    else:
        tokenizer = make_tokenizer(
            settings.tokenizer,
            _texts_of(examples["train"]),
            vocab_size=settings.vocab_size,
            cache_dir=settings.cache_dir,
        )
        scratch = Pretrained("", 0, settings.sizes(), tokenizer)
    labels = labels_of(examples["train"])
    if settings.kind != "span":
        require_classes(labels)
    encode = Encoder(scratch.tokenizer, scratch.sizes.max_length, labels, settings.cut)
    rows = {split: [encode(example) for example in some] for split, some in examples.items()}
    name = settings.made or settings.path_of("train").name
    return Data(name, labels, examples, rows, models, scratch)


def _open_models(settings: Settings) -> dict[str, dict[int, Pretrained]]:
    models: dict[str, dict[int, Pretrained]] = {}
    first: tuple[str, Pretrained] | None = None
    for folder in settings.init_from:
        for model in read(Path(folder)):
            first = first or (folder, model)
            if model.tokenizer.digest != first[1].tokenizer.digest or model.sizes != first[1].sizes:
                raise Invalid(
                    f"--init_from={folder}: a checkpoint of another vocabulary, or of other sizes, "
                    f"than {first[0]} has; compare models that read alike"
                )
            if model.seed in models.setdefault(model.title, {}):
                raise Invalid(f"--init_from={folder}: {model.title}, seed {model.seed} comes twice")
            models[model.title][model.seed] = model
    for title, by_seed in models.items():
        missing = [seed for seed in settings.seeds if seed not in by_seed]
        if missing and len(by_seed) > 1:
            raise Invalid(
                f"--seeds={missing[0]}: {title} was pre-trained with the seeds "
                f"{', '.join(map(str, by_seed))}; give some of them"
            )
    return models


def _open_examples(settings: Settings) -> dict[str, list[Example]]:
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
        split: files.read(settings.kind, settings.path_of(split), settings.columns)
        for split in SPLITS
    }


def _texts_of(examples: Sequence[Example]) -> list[str]:
    texts: list[str] = []
    for example in examples:
        match example:
            case Classified():
                texts += example.texts
            case Tagged():
                texts.append(" ".join(example.words))
            case Span():
                texts += (example.question, example.context)
    return texts


def shuffle(rows: Sequence[Encoded], length: int, batch_size: int, seed: int) -> grain.IterDataset:
    """Endless batches, shuffled anew in every epoch."""
    padded = [pad(row, length) for row in rows]
    order = grain.MapDataset.source(padded).seed(seed).shuffle().repeat()
    return order.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads=0))


def in_order(rows: Sequence[Encoded], length: int, batch_size: int) -> list[dict[str, np.ndarray]]:
    """All rows once; the last batch is filled with rows without a label."""
    padded = [pad(row, length) for row in rows]
    empty = {name: np.full_like(x, PAD) for name, x in padded[0].items()}
    empty["label"] = np.full_like(padded[0]["label"], NONE)
    return list(filled_batches(padded, empty, batch_size))
