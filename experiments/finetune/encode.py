"""From labelled examples to the rows of batches, and back from a model's choice to words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnlab.core.tokens import PAD, UNK
from attnlab.data.masking import join_segments
from attnlab.data.subwords import SentencePiece
from attnlab.data.tokenizers import Tokenizer
from attnlab.runs.errors import Invalid
from experiments.finetune.examples import Classified, Example, Span, Tagged

NONE = -1  # the label of what is not labelled


@dataclasses.dataclass(frozen=True)
class Encoded:
    """An example as a model sees it.

    Attributes:
      tokens: token ids [n].
      types: segments of the tokens [n].
      label: class []; classes of the tokens [n], `NONE` but for the first one of each word; or
        first and last token of the answer [2].
      places: characters (first, behind the last) of the context that each token has, [n, 2], of
        a span.
    """

    tokens: np.ndarray
    types: np.ndarray
    label: np.ndarray
    places: np.ndarray | None = None


def labels_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of training examples, sorted; of spans none."""
    labels = {x.label for x in examples if isinstance(x, Classified)}
    labels |= {tag for x in examples if isinstance(x, Tagged) for tag in x.tags}
    return tuple(sorted(labels))


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Encodes examples of one task.

    Attributes:
      tokenizer: tokenizer of the model.
      max_length: number of positions of the model.
      labels: labels of the training examples.
      cut: whether longer examples lose what is too long, instead of being refused.
    """

    tokenizer: Tokenizer
    max_length: int
    labels: tuple[str, ...]
    cut: bool = False

    def __call__(self, example: Example) -> Encoded:
        """The example's tokens and labels.

        Raises:
          Invalid: it is too long, or its label was not in training.
        """
        match example:
            case Classified():
                label = np.array(self._number(example.label, example.where), np.int32)
                texts = [self._ids(text) for text in example.texts]
                second = texts[1] if len(texts) > 1 else None
                a, b = self._fitted(texts[0], second, example.where)
                return Encoded(*join_segments(a, b), label)
            case Tagged():
                return self._tagged(example)
            case Span():
                return self._span(example)

    def _number(self, label: str, where: str) -> int:
        if label not in self.labels:
            raise Invalid(
                f"{where}: the label {label!r} was not in training; there are "
                f"{', '.join(self.labels)}"
            )
        return self.labels.index(label)

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text), np.int32)

    def _fitted(self, a: np.ndarray, b: np.ndarray | None, where: str) -> Any:
        """Both segments as they are, or without the end of the longer one."""
        room = self.max_length - (2 if b is None else 3)
        size = len(a) + (0 if b is None else len(b))
        if size > room and not self.cut:
            raise Invalid(
                f"{where}: {size + self.max_length - room} tokens, and the model has "
                f"{self.max_length} positions; give --cut, shorter examples, or a model with more"
            )
        if b is None:
            return a[:room], None
        while len(a) + len(b) > room:
            a, b = (a[:-1], b) if len(a) > len(b) else (a, b[:-1])
        return a, b

    def _by_word(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of words, and the number of the word of each."""
        # sentencepiece has the blank before a word in the word's first piece
        blank = "" if isinstance(self.tokenizer, SentencePiece) else " "
        ids = [self._ids(word + blank) for word in words]
        ids = [x if len(x) else np.array([UNK], np.int32) for x in ids]
        numbers = np.repeat(np.arange(len(ids)), [len(x) for x in ids])
        return np.concatenate(ids), numbers

    def _tagged(self, example: Tagged) -> Encoded:
        tags = [self._number(tag, example.where) for tag in example.tags]
        ids, numbers = self._by_word(example.words)
        ids, _ = self._fitted(ids, None, example.where)
        numbers = numbers[: len(ids)]
        first = np.diff(numbers, prepend=-1) != 0
        label = np.where(first, np.array(tags)[numbers], NONE)
        return Encoded(*join_segments(ids), np.pad(label, 1, constant_values=NONE).astype(np.int32))

    def _span(self, example: Span) -> Encoded:
        question, ids = self._ids(example.question), self._ids(example.context)
        question, ids = self._fitted(question, ids, example.where)
        before = len(question) + 2  # [CLS] question [SEP]
        places = np.zeros((before + len(ids) + 1, 2), np.int32)
        places[before:-1] = self._places(example.context)[: len(ids)]
        label = np.zeros(2, np.int32)  # [CLS]: no answer
        if example.answers:
            text, start = example.answers[0]
            inside = (places[:, 0] < start + len(text)) & (places[:, 1] > start)
            at = np.flatnonzero(inside[before:-1]) + before
            if len(at):
                label = np.array([at[0], at[-1]], np.int32)
            elif not self.cut:
                raise Invalid(f"{example.where}: no token at the answer {text!r}")
        return Encoded(*join_segments(question, ids), label, places)

    def _places(self, text: str) -> np.ndarray:
        """Characters (first, behind the last) of a text that each of its tokens has, [n, 2]."""
        if isinstance(self.tokenizer, SentencePiece):
            return self.tokenizer.places(text)
        of_byte = np.repeat(np.arange(len(text)), [len(x.encode()) for x in text])
        return np.stack([of_byte, of_byte + 1], axis=1)


def pad(row: Encoded, length: int) -> dict[str, np.ndarray]:
    """A row of a batch: tokens and types [length], and the label, which tokens have one each."""
    behind = (0, length - len(row.tokens))
    per_token = row.label.shape == row.tokens.shape
    return {
        "tokens": np.pad(row.tokens, behind, constant_values=PAD),
        "types": np.pad(row.types, behind, constant_values=PAD),
        "label": np.pad(row.label, behind, constant_values=NONE) if per_token else row.label,
    }
