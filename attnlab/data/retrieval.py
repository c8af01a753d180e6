"""A pair of documents that match if they hold the same key: retrieval over long inputs."""

from __future__ import annotations

import dataclasses
import random
import string

from attnlab.data.tasks import ENDLESS

__all__ = ["MARK", "KeyMatching"]

MARK = "#"  # before a key


@dataclasses.dataclass(frozen=True)
class KeyMatching:
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

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, str | int]:
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}")
        draw = random.Random(f"KeyMatching {self.seed} {index}")
        letters = string.ascii_lowercase[: self.num_letters]

        def word(count: int) -> str:
            return "".join(draw.choices(letters, k=count))

        key = other = word(self.key_length)
        label = draw.randrange(2)
        while not label and other == key:
            other = word(self.key_length)

        def document(key: str) -> str:
            free = self.length - 1 - self.key_length
            before = draw.randint(0, free)
            return word(before) + MARK + key + word(free - before)

        return {"first": document(key), "second": document(other), "label": label}
