"""From an example's texts to the token ids that batches are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from attnlab.core.tokens import EOS
from attnlab.data.tokenizers import Tokenizer

__all__ = ["EncodePair", "Encoded", "Example", "Source", "count_too_long"]

REMEMBERED = 2**18  # examples; 29,000 sentence pairs take 8 MB


class Source(Protocol):
    """Random access to examples, dictionaries of texts."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, str]: ...


# An encoded example: name → token ids [n], the last of them EOS
Example = dict[str, np.ndarray]


def ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Returns the token ids of a text and EOS, [n] int32."""
    return np.array([*tokenizer.encode(text), EOS], np.int32)


class EncodePair:
    """{"source", "target"} → their token ids; {} where either has more than max_length."""

    def __init__(
        self, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, max_length: int | None
    ) -> None:
        self.tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
        self.max_length = max_length

    def __call__(self, texts: Mapping[str, str]) -> Example:
        example = {name: ids(by, texts[name]) for name, by in self.tokenizers.items()}
        longest = max(map(len, example.values()))
        return {} if self.max_length is not None and longest > self.max_length else example


class Encoded:
    """A source of encoded examples. Of a small one, each is encoded once."""

    def __init__(self, source: Source, encode: Callable[[Mapping[str, str]], Example]) -> None:
        self.source, self.encode = source, encode
        self.remembers = len(source) <= REMEMBERED
        self._remembered: dict[int, Example] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        if index in self._remembered:
            return self._remembered[index]
        example = self.encode(self.source[index])
        if self.remembers:
            self._remembered[index] = example
        return example


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
