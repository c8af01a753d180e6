"""From an example's texts to the token ids that batches are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from jax.experimental import multihost_utils

from attnlab.core.tokens import EOS
from attnlab.data.tokenizers import Tokenizer
from attnlab.runs import processes

__all__ = ["EncodePair", "Encoded", "Example", "Later", "Source", "count_tokens", "count_too_long"]

REMEMBERED = 2**18  # examples; 29,000 sentence pairs take 8 MB
COUNTED = 2**25  # examples at most whose tokens are counted before a training; more are made up


class Source(Protocol):
    """Random access to examples, dictionaries of texts."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, str]: ...


class Later:
    """Token ids whose number is known, and which are encoded when an array is made of them."""

    def __init__(self, length: int, encode: Callable[[], np.ndarray]) -> None:
        self._length, self._encode = int(length), encode
        self._ids: np.ndarray | None = None

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._ids is None:
            self._ids = self._encode()
        return self._ids


# An encoded example: name → token ids [n], the last of them EOS
Example = dict[str, np.ndarray | Later]


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
        return self.kept({name: ids(by, texts[name]) for name, by in self.tokenizers.items()})

    def kept(self, example: Example) -> Example:
        """The example, or {} where it is too long, so that it is left out."""
        longest = max(map(len, example.values()))
        return {} if self.max_length is not None and longest > self.max_length else example

    def later(self, source: Source, index: int, lengths: np.ndarray) -> Example:
        """The same of an example whose numbers of tokens are known, without encoding it yet."""

        def side(name: str, by: Tokenizer) -> Callable[[], np.ndarray]:
            return lambda: ids(by, source[index][name])

        sides = zip(self.tokenizers.items(), lengths, strict=True)
        return self.kept({name: Later(n, side(name, by)) for (name, by), n in sides})


class Encoded:
    """A source of encoded examples. Of a small one, each is encoded once.

    With the numbers of tokens of all examples, which an `EncodePair` knows to use, an example is
    not encoded before a row of a batch is made of it.
    """

    def __init__(
        self,
        source: Source,
        encode: Callable[[Mapping[str, str]], Example],
        lengths: np.ndarray | None = None,
    ) -> None:
        self.source, self.encode, self.lengths = source, encode, lengths
        self.remembers = len(source) <= REMEMBERED
        self._remembered: dict[int, Example] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        if index in self._remembered:
            return self._remembered[index]
        if self.lengths is None:
            example = self.encode(self.source[index])
        else:
            assert isinstance(self.encode, EncodePair)
            example = self.encode.later(self.source, index, self.lengths[index])
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


def count_tokens(
    source: Source, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> np.ndarray | None:
    """The numbers of tokens of all pairs, EOS included, each process counting its share of them.

    A single process need not know them, and of more than `COUNTED` examples nobody does: None.

    Returns:
      Whole numbers, int32 [examples, 2].
    """
    count, index = processes.count(), processes.index()
    if count == 1 or len(source) > COUNTED:
        return None
    encode = EncodePair(source_tokenizer, target_tokenizer, max_length=None)
    most = -(-len(source) // count)
    mine = np.zeros((most, 2), np.int32)
    for row, example in enumerate(range(index, len(source), count)):
        mine[row] = [len(tokens) for tokens in encode(source[example]).values()]
    every = multihost_utils.process_allgather(mine)
    return np.asarray(every).swapaxes(0, 1).reshape(-1, 2)[: len(source)]
