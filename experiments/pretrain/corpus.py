"""The text of a run in documents, and the models that it may start from."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnlab.data.lines import read_blocks
from attnlab.data.masking import MaskedPairs, Masking
from attnlab.data.tokenizers import Tokenizer
from attnlab.runs.errors import Invalid
from attnlab.training.pretrained import Pretrained, make_tokenizer, read
from experiments.pretrain.settings import Settings

__all__ = ["Corpus", "open_corpus"]

Ids = list[list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in documents.

    Attributes:
      name: name of its file.
      digest: hash of the text.
      training: token ids of each line of each document to train on.
      validation: token ids of those that are held out.
      tokenizer: tokenizer of the models to start from, or one trained on the training documents.
      starts: models to start from, by the seed that they were trained with.
    """

    name: str
    digest: str
    training: Ids
    validation: Ids
    tokenizer: Tokenizer
    starts: Mapping[int, Pretrained]

    def pairs(self, settings: Settings, masking: Masking | None = None) -> MaskedPairs:
        """The pairs of a training, or without a masking those that are held out, 80/10/10."""
        return MaskedPairs(
            self.validation if masking is None else self.training,
            self.tokenizer.vocab_size,
            settings.length,
            masking or Masking(),
            settings.max_predictions,
        )


def open_corpus(settings: Settings) -> Corpus:
    """The text of the settings, and the models to start from.

    Raises:
      Invalid: the text is missing, not text, or has too few documents; there are no models, or of
        another size or vocabulary, or none of a seed.
    """
    starts = _starts(settings)
    assert settings.input is not None
    path = Path(settings.input)
    documents = [lines for _, lines in read_blocks(path)]
    if not documents:
        raise Invalid(f"--input={path}: there is no document in it; give a text")
    last = max(1, round(settings.held_out * len(documents)))
    tokenizer = (
        next(iter(starts.values())).tokenizer
        if starts
        else make_tokenizer(
            settings.tokenizer,
            itertools.chain(*documents[:-last]),
            vocab_size=settings.vocab_size,
            cache_dir=settings.cache_dir,
        )
    )
    ids = [[np.array(tokenizer.encode(line), np.int32) for line in lines] for lines in documents]
    digest = hashlib.sha256("\n\n".join(map("\n".join, documents)).encode()).hexdigest()
    corpus = Corpus(path.name, digest, ids[:-last], ids[-last:], tokenizer, starts)
    for what, some in (("train", corpus.training), ("validate", corpus.validation)):
        try:  # says now what is wrong with them
            corpus.pairs(settings, Masking() if what == "train" else None)
        except Invalid as error:
            raise Invalid(
                f"--input={path}: --held_out={settings.held_out:g} leaves {len(some)} of its "
                f"{len(documents)} documents to {what} on; {error}"
            ) from None
    return corpus


def _starts(settings: Settings) -> dict[int, Pretrained]:
    if settings.init_from is None:
        return {}
    models = {model.seed: model for model in read(Path(settings.init_from))}
    for model in models.values():
        if model.sizes != settings.sizes():
            raise Invalid(
                f"--init_from={settings.init_from}: a model of {model.sizes}; give its sizes, with "
                "--max_length where --length is another"
            )
        kind = "bytes" if model.tokenizer.digest == "bytes" else "sentencepiece"
        words = model.tokenizer.vocab_size
        if kind != settings.tokenizer or (kind != "bytes" and words != settings.vocab_size):
            raise Invalid(
                f"--init_from={settings.init_from}: a checkpoint of another vocabulary, {kind} of "
                f"{words} ids; give --tokenizer and --vocab_size as it has them"
            )
    if len(models) > 1 and (missing := [seed for seed in settings.seeds if seed not in models]):
        raise Invalid(
            f"--init_from={settings.init_from}: no model of seed {missing[0]}; there are "
            f"{', '.join(map(str, models))}"
        )
    return models
