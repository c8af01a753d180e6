"""ListOps as Long Range Arena draws it: nested lists whose value is a digit.

A node is a digit, or with probability ¼ an operator over 2 to `max_args` nodes, down to
`max_depth`; the root is a node too. Trees are drawn until one has as many tokens as wanted.

Source: Nangia & Bowman 2018, §2; Tay et al. 2020, §2.2.1, with the choices of its released
generator: the four operators below, the integer part of the median, and digits more often than the
first paper has them. Its parentheses, which say nothing that brackets do not, are left out; its
lengths do not count them either.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Sequence

from attnlab.data.tasks import ENDLESS
from attnlab.tokens import NUM_SPECIAL

__all__ = ["CLASSES", "VOCABULARY", "ListOps", "encode", "value"]

_SUBTREE = 0.25  # probability of an operator
_OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLASSES = 10
VOCABULARY = (*map(str, range(CLASSES)), *_OPERATORS, "]")


@dataclasses.dataclass(frozen=True)
class ListOps:
    """Examples {"text", "label"}: "[MAX 2 9 [MIN 4 7 ] 0 ]" and 9.

    An example depends on the seed and its index alone; another seed is another split.

    Attributes:
      min_length: number of tokens of the shortest example.
      max_length: number of tokens of the longest example.
      max_depth: number of levels of the deepest tree, digits included.
      max_args: number of arguments that an operator has at most.
      seed: seed of all examples.
      size: number of examples.

    Raises:
      ValueError: there is no example of such a length.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0
    size: int = ENDLESS

    def __post_init__(self) -> None:
        most = 1  # tokens of the largest tree
        for _ in range(self.max_depth - 1):
            most = 2 + self.max_args * most
        fits = 4 <= self.min_length <= self.max_length and self.min_length <= most
        if not fits or self.max_args < 2 or self.max_depth < 2:
            raise ValueError(
                "ListOps needs 4 ≤ min_length ≤ max_length, max_args ≥ 2 and a max_depth that trees"
                f" of min_length fit in; got {self.min_length}, {self.max_length},"
                f" {self.max_args} and {self.max_depth}"
            )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, str | int]:
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}")
        draw = random.Random(f"ListOps {self.seed} {index}")
        while True:
            tokens: list[str] = []
            found = self._node(draw, tokens, 1)
            if found is not None and len(tokens) >= self.min_length:
                return {"text": " ".join(tokens), "label": found}

    def _node(self, draw: random.Random, tokens: list[str], depth: int) -> int | None:
        """The value of a node whose tokens are added; None where they become too many."""
        if len(tokens) >= self.max_length:
            return None
        if depth >= self.max_depth or draw.random() > _SUBTREE:
            digit = draw.randrange(CLASSES)
            tokens.append(str(digit))
            return digit
        operator = draw.choice(tuple(_OPERATORS))
        tokens.append(operator)
        values = []
        for _ in range(draw.randint(2, self.max_args)):
            found = self._node(draw, tokens, depth + 1)
            if found is None:
                return None
            values.append(found)
        tokens.append("]")
        return _OPERATORS[operator](values) if len(tokens) <= self.max_length else None


def value(text: str) -> int:
    """What an expression comes to.

    >>> value("[SM 7 [MED 1 2 9 4 ] [MAX 3 8 ] ]")  # 7 + 3 + 8
    8
    """
    stack: list[tuple[str, list[int]]] = [("", [])]
    for token in text.split():
        if token in _OPERATORS:
            stack.append((token, []))
        elif token == "]":
            operator, values = stack.pop()
            stack[-1][1].append(_OPERATORS[operator](values))
        else:
            stack[-1][1].append(int(token))
    ((_, (found,)),) = stack
    return found


def encode(text: str) -> list[int]:
    """The ids of an expression: its tokens' places in `VOCABULARY`, behind the special ids."""
    return [NUM_SPECIAL + _PLACES[token] for token in text.split()]


_PLACES = {token: place for place, token in enumerate(VOCABULARY)}
