"""Synthetic tasks: endless, seeded, made in code. An example depends only on (seed, index)."""

from __future__ import annotations

import abc
import dataclasses
import random
import string
from typing import Any

__all__ = ["ENDLESS", "MARK", "Copy", "Drawn", "KeyMatching", "Reversal", "SymbolTask"]

ENDLESS = 2**31 - 1  # a length that grain shuffles without a table
MARK = "#"  # before a key


class Drawn(abc.ABC):
    """Examples that are drawn, each by the seed and its index alone.

    Attributes:
      seed: seed of all examples; another one is another split.
      size: number of examples.
    """

    seed: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}")
        return self.draw(random.Random(f"{type(self).__name__} {self.seed} {index}"))

    @abc.abstractmethod
    def draw(self, rng: random.Random) -> dict[str, Any]:
        """An example of random numbers that belong to it."""


@dataclasses.dataclass(frozen=True)
class SymbolTask(Drawn):
    """Random words over the symbols 1 … num_symbols, written as numbers: `"3 17 17 5"`.

    The tokenizer is `tokenizers.Numbers(num_symbols + 1)`: the symbol 0 is a separator. Lengths and
    symbols are uniform. Take another seed for held-out examples.

    Attributes:
      num_symbols: number of symbols that words are made of.
      min_length: number of symbols in the shortest word.
      max_length: number of symbols in the longest word.
      seed: seed of the whole task.
      size: number of examples.

    Raises:
      ValueError: there is no word of such a length.
    """

    num_symbols: int
    min_length: int
    max_length: int
    seed: int = 0
    size: int = ENDLESS

    def __post_init__(self) -> None:
        if self.num_symbols < 1 or not 1 <= self.min_length <= self.max_length:
            raise ValueError(
                "a task needs num_symbols ≥ 1 and 1 ≤ min_length ≤ max_length; got "
                f"{self.num_symbols}, {self.min_length}, {self.max_length}"
            )

    def draw(self, rng: random.Random) -> dict[str, Any]:
        length = rng.randint(self.min_length, self.max_length)
        return self.example(rng.choices(range(1, self.num_symbols + 1), k=length))

    @abc.abstractmethod
    def example(self, word: list[int]) -> dict[str, str]:
        """The example that the task makes of a word."""


def numbers(symbols: list[int]) -> str:
    return " ".join(map(str, symbols))


class Copy(SymbolTask):
    """The target is the source: with a range of lengths, what a fixed vector can hold.

    >>> Copy(num_symbols=9, min_length=3, max_length=3).example([4, 1, 9])
    {'source': '4 1 9', 'target': '4 1 9'}
    """

    def example(self, word: list[int]) -> dict[str, str]:
        return {"source": numbers(word), "target": numbers(word)}


class Reversal(SymbolTask):
    """The target is the source backwards: target i stems from source n − 1 − i.

    >>> Reversal(num_symbols=9, min_length=3, max_length=3).example([4, 1, 9])
    {'source': '4 1 9', 'target': '9 1 4'}
    """

    def example(self, word: list[int]) -> dict[str, str]:
        return {"source": numbers(word), "target": numbers(word[::-1])}


@dataclasses.dataclass(frozen=True)
class KeyMatching(Drawn):
    """Examples {"first", "second", "label"}: random letters with a marked key each; 1 = the same.

    Half of the pairs match. A model that compares documents by one vector each must find the key,
    and keep it. In the place of Tay et al. 2020, §2.2.3, whose texts are citations.

    Attributes:
      length: number of characters of a document.
      key_length: number of letters of a key.
      num_letters: number of different letters.
      seed: seed of all examples; another one is another split.
      size: number of examples.

    Raises:
      ValueError: a key that has no room, or letters that cannot be.
    """

    length: int = 4000
    key_length: int = 3
    num_letters: int = 26
    seed: int = 0
    size: int = ENDLESS

    def __post_init__(self) -> None:
        if not (1 <= self.key_length < self.length and 2 <= self.num_letters <= 26):
            raise ValueError(
                "a pair needs 1 ≤ key_length < length and 2 to 26 letters; got "
                f"{self.key_length}, {self.length} and {self.num_letters}"
            )

    def draw(self, rng: random.Random) -> dict[str, Any]:
        letters = string.ascii_lowercase[: self.num_letters]

        def word(count: int) -> str:
            return "".join(rng.choices(letters, k=count))

        key = other = word(self.key_length)
        label = rng.randrange(2)
        while not label and other == key:
            other = word(self.key_length)

        def document(key: str) -> str:
            free = self.length - 1 - self.key_length
            before = rng.randint(0, free)
            return word(before) + MARK + key + word(free - before)

        return {"first": document(key), "second": document(other), "label": label}
