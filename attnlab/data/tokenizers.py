"""From strings to token ids and back. Ids 0 to 3 are PAD, BOS, EOS and UNK in every tokenizer."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from attnlab.core.tokens import EOS, NUM_SPECIAL, UNK

__all__ = ["Bytes", "Characters", "Numbers", "Tokenizer", "sha256", "until_end"]


SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # as SentencePiece writes them


class Tokenizer(Protocol):
    """What batches and searches ask of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are, the special ones included."""

    @property
    def digest(self) -> str:
        """Equal for two tokenizers only if they encode alike; goes into checkpoints."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special ones."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first EOS, without the special ones."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id as a reader should see it, the special ones as <s>, </s>, …."""


def until_end(ids: Iterable[int]) -> Iterator[int]:
    """Yields the ids up to the first EOS, the special ones left out."""
    for token in ids:
        if token == EOS:
            return
        if token >= NUM_SPECIAL:
            yield int(token)


def piece(token: int, write: Callable[[int], str]) -> str:
    """The name of a special token, or what `write` makes of the others, counted from 0."""
    return SPECIAL[token] if token < NUM_SPECIAL else write(int(token) - NUM_SPECIAL)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """The bytes of UTF-8, each 4 + its value: any text, nothing to train.

    >>> Bytes().encode("hé")
    [108, 199, 173]
    >>> Bytes().decode([1, 108, 199, 173, 2, 108, 0])
    'hé'
    """

    @property
    def vocab_size(self) -> int:
        return NUM_SPECIAL + 256

    @property
    def digest(self) -> str:
        return "bytes"

    def encode(self, text: str) -> list[int]:
        # What a command line has that is no UTF-8 comes as surrogates, which are its bytes.
        return [NUM_SPECIAL + byte for byte in text.encode(errors="surrogateescape")]

    @property
    def bytes_of(self) -> tuple[int, ...]:
        """Numbers of bytes that the ids stand for."""
        return (0,) * NUM_SPECIAL + (1,) * 256

    def decode(self, ids: Iterable[int]) -> str:
        # a model can write half a character
        return bytes(token - NUM_SPECIAL for token in until_end(ids)).decode(errors="replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        # a byte alone is a character only in ASCII
        return [piece(i, lambda i: bytes([i]).decode(errors="replace")) for i in ids]


@dataclasses.dataclass(frozen=True)
class Characters:
    """The characters of a text, each 4 + its place in the sorted vocabulary; others are UNK.

    >>> tokenizer = Characters.of("hello")
    >>> tokenizer.characters, tokenizer.encode("hey")
    ('ehlo', [5, 4, 3])
    >>> tokenizer.decode([5, 4, 6, 7])
    'helo'
    """

    characters: str

    @classmethod
    def of(cls, text: str) -> "Characters":
        """The vocabulary of a text."""
        return cls("".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        return NUM_SPECIAL + len(self.characters)

    @property
    def digest(self) -> str:
        return f"characters {sha256([self.characters.encode()])}"

    def encode(self, text: str) -> list[int]:
        places = {character: NUM_SPECIAL + i for i, character in enumerate(self.characters)}
        return [places.get(character, UNK) for character in text]

    @property
    def bytes_of(self) -> tuple[int, ...]:
        """Numbers of bytes that the ids stand for, in UTF-8."""
        return (0,) * NUM_SPECIAL + tuple(len(x.encode()) for x in self.characters)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[token - NUM_SPECIAL] for token in until_end(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [piece(i, self.characters.__getitem__) for i in ids]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The symbols 0 … size − 1 written as numbers, each 4 + its value: for the synthetic tasks.

    >>> Numbers(10).encode("0 3 9 12")
    [4, 7, 13, 3]
    >>> Numbers(10).decode([4, 7, 13, 2])
    '0 3 9'
    """

    size: int

    @property
    def vocab_size(self) -> int:
        return NUM_SPECIAL + self.size

    @property
    def digest(self) -> str:
        return f"numbers {self.size}"

    def encode(self, text: str) -> list[int]:
        symbols = map(int, text.split())
        return [NUM_SPECIAL + symbol if 0 <= symbol < self.size else UNK for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(str(token - NUM_SPECIAL) for token in until_end(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [piece(i, str) for i in ids]


def sha256(parts: Iterable[bytes]) -> str:
    """One hash of several byte strings, which also depends on where each ends."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()
