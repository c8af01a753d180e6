"""ListOps as Long Range Arena draws it: nested lists whose value is a digit.

A node is a digit, or with probability ¼ an operator over 2 to 10 nodes, down to `max_depth`; the
root is a node too. Trees are drawn until one has as many tokens as wanted.

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
from typing import Any

from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.tasks import ENDLESS, Drawn

_SUBTREE = 0.25  # probability of an operator
_ARGS = 10  # nodes that an operator has at most
_OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLASSES = 10
_DIGITS = tuple(map(str, range(CLASSES)))
_NAMES = tuple(_OPERATORS)
VOCABULARY = (*_DIGITS, *_NAMES, "]")


@dataclasses.dataclass(frozen=True)
class ListOps(Drawn):
    """Examples {"text", "label"}: "[MAX 2 9 [MIN 4 7 ] 0 ]" and 9.

    An example depends on the seed and its index alone; another seed is another split.

    Attributes:
      min_length: number of tokens of the shortest example.
      max_length: number of tokens of the longest example.
      max_depth: number of levels of the deepest tree, digits included.
      seed: seed of all examples.
      size: number of examples.

    Raises:
      ValueError: there is no example of such a length.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    seed: int = 0
    size: int = ENDLESS

    def __post_init__(self) -> None:
        most = 1  # tokens of the largest tree
        for _ in range(self.max_depth - 1):
            most = 2 + _ARGS * most
        fits = 4 <= self.min_length <= self.max_length and self.min_length <= most
        if not fits or self.max_depth < 2:
            raise ValueError(
                "ListOps needs 4 ≤ min_length ≤ max_length, and a max_depth that trees of"
                f" min_length fit in; got {self.min_length}, {self.max_length} and {self.max_depth}"
            )

    def draw(self, rng: random.Random) -> dict[str, Any]:
        while True:
            tokens = self._tree(rng.random)
            if len(tokens) >= self.min_length:
                text = " ".join(tokens)
                return {"text": text, "label": value(text)}

    def _tree(self, draw: Callable[[], float]) -> list[str]:
        """The tokens of a tree; none where they would be too many, as soon as that is known.

        Most trees are too long or too short, so this is written for speed: without recursion, and
        with `draw` alone, which is faster than `Random.randrange`.
        """
        tokens: list[str] = []
        missing = [1]  # nodes that are still to come, by level
        length = 1  # of the tree, if all of them are digits
        while missing:
            if not missing[-1]:
                missing.pop()
                if missing:
                    tokens.append("]")
                continue
            missing[-1] -= 1
            if len(missing) >= self.max_depth or draw() > _SUBTREE:
                tokens.append(_DIGITS[int(draw() * CLASSES)])
                continue
            tokens.append(_NAMES[int(draw() * len(_NAMES))])
            missing.append(2 + int(draw() * (_ARGS - 1)))
            length += 1 + missing[-1]
            if length > self.max_length:
                return []
        return tokens


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
    ((_, (result,)),) = stack
    return result


def encode(text: str) -> list[int]:
    """The ids of an expression: its tokens' places in `VOCABULARY`, behind the special ids."""
    return [NUM_SPECIAL + _PLACES[token] for token in text.split()]


_PLACES = {token: place for place, token in enumerate(VOCABULARY)}
