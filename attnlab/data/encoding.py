"""From an example's texts to the pieces of token ids that batches are made of."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from attnlab.data.tokenizers import Tokenizer
from attnlab.tokens import EOS

__all__ = ["EncodeDocument", "EncodePair", "Encoded", "Piece", "Source", "count_too_long"]

Piece = dict[str, np.ndarray]  # name → token ids [n], the last of them EOS

REMEMBERED = 2**18  # examples; 29,000 sentence pairs take 8 MB


class Source(Protocol):
    """Random access to examples, dictionaries of texts."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, str]: ...


def ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Returns the token ids of a text and EOS, [n] int32."""
    return np.array([*tokenizer.encode(text), EOS], np.int32)


class EncodePair:
    """{"source", "target"} → one piece, or none where either is longer than max_length."""

    def __init__(
        self, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, max_length: int | None
    ) -> None:
        self.tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
        self.max_length = max_length

    def __call__(self, example: Mapping[str, str]) -> list[Piece]:
        piece = {name: ids(by, example[name]) for name, by in self.tokenizers.items()}
        if self.max_length and max(map(len, piece.values())) > self.max_length:
            return []
        return [piece]


class EncodeDocument:
    """{"text"} → its tokens in pieces of at most `length`, so that nothing is lost."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length

    def __call__(self, example: Mapping[str, str]) -> list[Piece]:
        tokens = ids(self.tokenizer, example["text"])
        return [{"tokens": tokens[i : i + self.length]} for i in range(0, len(tokens), self.length)]


class Encoded:
    """A source of lists of pieces. Of a small one, each example is encoded once."""

    def __init__(self, source: Source, encode: Callable[[Mapping[str, str]], list[Piece]]) -> None:
        self.source, self.encode = source, encode
        self.remembers = len(source) <= REMEMBERED
        self.pieces: dict[int, list[Piece]] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> list[Piece]:
        pieces = self.pieces.get(index)
        if pieces is None:
            pieces = self.encode(self.source[index])
            if self.remembers:
                self.pieces[index] = pieces
        return pieces


def count_too_long(
    source: Source,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    max_length: int,
    sample: int = 10_000,
) -> tuple[int, int]:
    """How many of the first `sample` examples training leaves out, and how many were looked at."""
    encode = EncodePair(source_tokenizer, target_tokenizer, max_length)
    looked_at = min(sample, len(source))
    return sum(not encode(source[i]) for i in range(looked_at)), looked_at
