"""Subword units by SentencePiece, byte pairs (Sennrich 2016), trained on the training split."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from attnlab.core.tokens import BOS, EOS, PAD, UNK
from attnlab.data.cache import add_file, default_cache_dir
from attnlab.data.encoding import Source
from attnlab.data.tokenizers import sha256, until_end
from attnlab.runs.errors import Invalid

__all__ = ["SentencePiece", "train_sentencepiece"]

MAX_BYTES = 2**30  # of a text; sentencepiece's own limit leaves out, silently, what has 4192
_AS_IT_IS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
MAX_EXAMPLES = 1_000_000  # more of them do not change what is learnt, only how long it takes


class SentencePiece:
    """A trained SentencePiece model.

    Args:
      model: bytes of a model file with attnlab's special ids.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __getstate__(self) -> dict[str, bytes]:
        return {"model": self.model}  # workers load the processor anew

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @functools.cached_property
    def digest(self) -> str:
        return f"sentencepiece {sha256([self.model])}"

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode(list(until_end(ids)))

    def places(self, text: str) -> np.ndarray:
        """Characters (first, behind the last) of a text that each of its tokens has, [n, 2]."""
        pieces = self._processor.encode(text, out_type=str)
        ends = np.cumsum([0, *map(len, pieces)]) - 1  # the first begins with a blank of its own
        return np.stack([np.maximum(ends[:-1], 0), ends[1:]], axis=1)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(token)) for token in ids]


def train_sentencepiece(
    source: Source,
    sides: Sequence[str] = ("source", "target"),
    *,
    vocab_size: int,
    cache_dir: str | Path | None = None,
) -> SentencePiece:
    """Trains a tokenizer on a data set, or takes it from the cache.

    The same texts and settings give the same model. Of more than a million examples, a million are
    read, equally spaced. Texts are taken as they are, white space and Unicode too (sentencepiece's
    own default folds both), so that a text of known characters comes back from its tokens.

    Args:
      source: examples of the training split.
      sides: names of the texts of an example to train on. Two of them share one vocabulary (Vaswani
        2017 §5.1).
      vocab_size: number of ids, the four special ones included.
      cache_dir: folder of trained models; None is `cache.default_cache_dir()`.

    Raises:
      Invalid: no such vocabulary can be made of this text, or the cache cannot be written.
    """
    if not len(source):
        raise Invalid("no vocabulary can be made of no examples; give a text")
    settings = f"{sentencepiece.__version__} bpe {vocab_size} {MAX_BYTES} {_AS_IT_IS}"
    key = sha256([settings.encode(), *(text.encode() for text in texts(source, sides))])
    path = Path(cache_dir or default_cache_dir()) / f"sentencepiece-{key[:32]}.model"
    if path.is_file():
        return SentencePiece(path.read_bytes())
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts(source, sides),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=1.0,
            max_sentence_length=MAX_BYTES,
            **_AS_IT_IS,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            num_threads=1,  # the model depends on how many there are
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = re.sub(r".*\] ", "", str(error), count=1)  # without file, line and condition
        raise Invalid(
            f"no vocabulary of vocab_size={vocab_size} can be made of the "
            f"{' and '.join(sides)} texts; sentencepiece says: {reason}"
        ) from error
    add_file(path, model.getvalue())
    return SentencePiece(model.getvalue())


def texts(source: Source, sides: Sequence[str]) -> Iterator[str]:
    """Yields the texts to train on."""
    for index in range(0, len(source), -(-len(source) // MAX_EXAMPLES)):
        example = source[index]
        yield from (example[side] for side in sides)
