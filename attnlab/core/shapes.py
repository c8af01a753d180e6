"""Shapes by letters: a letter is one size, in all arrays that are checked together."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np


class _Axis(NamedTuple):
    """One axis, or with `is_many` any number of them, as a letter stands for it."""

    letter: str
    is_many: bool
    broadcasts: bool

    def __str__(self) -> str:
        star = "*" if self.is_many else ""
        return f"{star}{self.letter}|1" if self.broadcasts else f"{star}{self.letter}"


def fit(*given: Any, remedy: str = "", **sizes: Any) -> dict[str, Any]:
    """Reads the sizes of axes from arrays, and refuses arrays that do not agree in them.

    `*B`, in front, is any number of axes. An axis `T|1` may be 1 instead, which broadcasts, and be
    left out in front; `*B|1` broadcasts to *B.

        >>> q, k = np.ones((2, 7, 4, 8)), np.ones((2, 5, 1, 8))
        >>> fit("q: *B T N H", q, "k: *B S K H", k)
        {'B': (2,), 'T': 7, 'N': 4, 'H': 8, 'S': 5, 'K': 1}

    Args:
      *given: name and letters of an array, then the array, or what else has a shape; and so on.
      remedy: words on what the caller may do, for the message.
      **sizes: sizes of letters that are known before, such as T=7 or B=(2, 3).

    Returns:
      The size of each letter, of `*B` a tuple; symbolic sizes of `jax.export` stay symbolic.

    Raises:
      ValueError: an array has other axes than its letters say.
    """
    givers: dict[str, tuple[str, Any]] = {}  # what the size of a letter was read from
    for described, x in zip(given[::2], given[1::2], strict=True):
        axes = _read(described)[1]
        shape = np.shape(x)
        parts = _divide(shape, axes)
        if parts is None:
            raise ValueError(_misfit(described, shape, sizes, remedy))
        for axis, part in zip(axes, parts, strict=True):
            if axis.letter not in sizes:
                sizes[axis.letter] = part
                givers[axis.letter] = described, shape
            elif not _agrees(axis, part, sizes[axis.letter]):
                giver = givers.get(axis.letter)
                raise ValueError(_misfit(described, shape, sizes, remedy, giver))
    return sizes


def broadcasts_to(shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Whether each axis of a shape, from the last on, is 1 or that of the wanted one."""
    axes = zip(shape[::-1], wanted[::-1], strict=False)
    return len(shape) <= len(wanted) and all(got in (1, want) for got, want in axes)


@functools.lru_cache(maxsize=1024)
def _read(described: str) -> tuple[str, tuple[_Axis, ...]]:
    """The name and the axes of "name: *B T|1"."""
    name, letters = described.split(": ")
    axes = []
    for word in letters.split():
        letter = word.removeprefix("*").removesuffix("|1")
        axes.append(_Axis(letter, word.startswith("*"), word.endswith("|1")))
    return name, tuple(axes)


def _divide(shape: tuple[Any, ...], axes: tuple[_Axis, ...]) -> list[Any] | None:
    """What of a shape belongs to each of the axes; None where it has too few or too many."""
    single = axes[1:] if axes[0].is_many else axes
    num_left_out = max(0, len(single) - len(shape))
    if not all(axis.broadcasts for axis in single[:num_left_out]):
        return None
    shape = (1,) * num_left_out + shape
    num_many = len(shape) - len(single)
    if axes[0].is_many:
        return [shape[:num_many], *shape[num_many:]]
    return list(shape) if num_many == 0 else None


def _agrees(axis: _Axis, got: Any, wanted: Any) -> bool:
    """Whether a size, or several, is that of the letter."""
    if axis.is_many and axis.broadcasts:
        return broadcasts_to(got, wanted)
    return bool(got == wanted) or (axis.broadcasts and bool(got == 1))


def _misfit(
    described: str,
    shape: tuple[Any, ...],
    sizes: dict[str, Any],
    remedy: str,
    giver: tuple[str, Any] | None = None,
) -> str:
    """The message about an array: its letters, their sizes where they are known, what was got."""
    name, axes = _read(described)
    verb = "be"
    if all(axis.broadcasts for axis in axes):
        verb = "broadcast to"
        axes = tuple(axis._replace(broadcasts=False) for axis in axes)
    wanted: list[str] = []
    for axis in axes:
        size = sizes.get(axis.letter)
        several = size if isinstance(size, tuple) else (size,)
        or_one = "|1" if axis.broadcasts else ""
        wanted += [str(axis)] if size is None else [f"{one}{or_one}" for one in several]
    rule = f"{name} must {verb} {_show_letters(axes)}"
    if any(axis.letter in sizes for axis in axes):
        rule += f" = {_show_sizes(wanted)}"
    if giver is not None:
        other, other_axes = _read(giver[0])
        rule += f" for {other} {_show_letters(other_axes)} = {_show_sizes(giver[1])}"
    hint = f" ({remedy})" if remedy else ""
    return f"{rule}; got {_show_sizes(shape)}{hint}"


def _show_letters(axes: tuple[_Axis, ...]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def _show_sizes(sizes: Any) -> str:
    """Sizes and letters as a tuple of them is shown."""
    comma = "," if len(sizes) == 1 else ""
    return f"({', '.join(map(str, sizes))}{comma})"
