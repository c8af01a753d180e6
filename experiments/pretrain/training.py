"""The text of a run, and the training of one model on it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab.data.lines import read_blocks
from attnlab.data.masking import MaskedPairs, Masking, fixed_batches, masked_batches, statistics
from attnlab.data.parts import WHOLE, Part
from attnlab.data.tokenizers import Tokenizer
from attnlab.models.bert import BertPretraining
from attnlab.runs.errors import Invalid
from attnlab.training.loop import Task
from attnlab.training.masked import MaskedCrossEntropy
from attnlab.training.pretrained import Pretrained, make_tokenizer, read
from experiments.pretrain.settings import Cell, Settings

__all__ = ["Corpus", "masked_shares", "open_corpus", "open_start", "task"]

_COUNTED = 50  # batches whose masks are counted for the report
# Settings that must be the same to go on from a checkpoint.
_IDENTITY = (
    "steps",
    "batch_size",
    "length",
    "max_predictions",
    "learning_rate",
    "warmup_steps",
    "validate_every",
    "accumulate",
    "held_out",
)


Ids = list[list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in documents.

    Attributes:
      name: name of its file.
      digest: hash of the text.
      training: token ids of each line of each document to train on.
      validation: token ids of those that are held out.
      tokenizer: tokenizer, trained on the training documents if it is one to train.
    """

    name: str
    digest: str
    training: Ids
    validation: Ids
    tokenizer: Tokenizer

    def pairs(
        self, settings: Settings, cell: Cell | None = None, *, held_out: bool = False
    ) -> MaskedPairs:
        """The pairs of a training, or those that are held out, which every one has alike."""
        return MaskedPairs(
            self.validation if held_out else self.training,
            self.tokenizer.vocab_size,
            settings.length,
            Masking() if cell is None else cell.percents,
            settings.max_predictions,
        )


def open_corpus(settings: Settings, start: Pretrained | None) -> Corpus:
    """The text of the settings.

    Args:
      settings: settings of the run.
      start: model to start from, whose tokenizer the text gets; None = none.

    Raises:
      Invalid: it is missing, not text, or has too few documents.
    """
    assert settings.input is not None
    path = Path(settings.input)
    documents = [lines for _, lines in read_blocks(path)]
    if not documents:
        raise Invalid(f"--input={path}: there is no document in it; give a text")
    last = max(1, round(settings.held_out * len(documents)))
    tokenizer = (
        start.tokenizer
        if start
        else make_tokenizer(
            settings.tokenizer,
            itertools.chain(*documents[:-last]),
            vocab_size=settings.vocab_size,
            cache_dir=settings.cache_dir,
        )
    )
    ids = [[np.array(tokenizer.encode(line), np.int32) for line in lines] for lines in documents]
    digest = hashlib.sha256("\n\n".join(map("\n".join, documents)).encode()).hexdigest()
    corpus = Corpus(path.name, digest, ids[:-last], ids[-last:], tokenizer)
    for held_out, some in enumerate((corpus.training, corpus.validation)):
        try:
            corpus.pairs(settings, held_out=bool(held_out))  # says now what is wrong with them
        except Invalid as error:
            what = "validate" if held_out else "train"
            raise Invalid(
                f"--input={path}: --held_out={settings.held_out:g} leaves {len(some)} of its "
                f"{len(documents)} documents to {what} on; {error}"
            ) from None
    return corpus


def open_start(settings: Settings) -> dict[int, Pretrained]:
    """The models to start from, by the seed that they were trained with.

    Raises:
      Invalid: there are none, or of another size or vocabulary.
    """
    if settings.init_from is None:
        return {}
    found = {one.seed: one for one in read(Path(settings.init_from))}
    for one in found.values():
        if one.sizes != settings.sizes():
            raise Invalid(
                f"--init_from={settings.init_from}: a model of {one.sizes}; give its sizes, with "
                "--max_length where --length is another"
            )
        kind = "bytes" if one.tokenizer.digest == "bytes" else "sentencepiece"
        words = one.tokenizer.vocab_size
        if kind != settings.tokenizer or (kind != "bytes" and words != settings.vocab_size):
            raise Invalid(
                f"--init_from={settings.init_from}: a checkpoint of another vocabulary, {kind} of "
                f"{words} ids; give --tokenizer and --vocab_size as it has them"
            )
    return found


def task(
    cell: Cell,
    settings: Settings,
    corpus: Corpus,
    start: Pretrained | None,
    part: Part = WHOLE,
) -> Task[BertPretraining]:
    """Model, objective and pairs of a training.

    Args:
      cell: training to make.
      settings: settings of the run.
      corpus: text to train on.
      start: model to start from, or None.
      part: part of each batch that this process computes.
    """
    config, attention = settings.sizes().build(corpus.tokenizer.vocab_size + 1)
    batches = masked_batches(
        corpus.pairs(settings, cell), batch_size=settings.batch_size, seed=cell.seed, part=part
    )
    held_out = corpus.pairs(settings, held_out=True)
    validation = [
        part.of(batch) for batch in fixed_batches(held_out, batch_size=settings.batch_size)
    ]
    kept = settings.as_json()
    identity: dict[str, Any] = {
        **cell._asdict(),
        **{name: kept[name] for name in _IDENTITY},
        "sizes": dataclasses.asdict(settings.sizes()),
        "tokenizer": corpus.tokenizer.digest,
        "text": corpus.digest,
        "start": start and start.title,
    }
    return Task(
        BertPretraining(config, attention),
        MaskedCrossEntropy(next_sentence=cell.objective == "mlm_nsp"),
        batches,
        lambda: validation,
        identity,
        streams=settings.sizes().streams,
        start=None if start is None else lambda drawn: jax.tree.map(np.asarray, start.params),
    )


def masked_shares(cell: Cell, settings: Settings, corpus: Corpus) -> dict[str, float]:
    """What the first batches of a training have masked."""
    batches = masked_batches(
        corpus.pairs(settings, cell), batch_size=settings.batch_size, seed=cell.seed
    )
    return statistics(itertools.islice(iter(batches), _COUNTED), corpus.tokenizer.vocab_size)
