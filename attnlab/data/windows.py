"""Windows over one long text: random ones to train on, consecutive ones to evaluate on.

The text is an array of ids, such as the bytes of a file that stays on disk (`map_bytes`), so that a
text may be larger than the memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import grain
import numpy as np

from attnlab.core.checks import as_size, require
from attnlab.core.tokens import PAD
from attnlab.data.lines import GZIP
from attnlab.data.parts import WHOLE, Part
from attnlab.data.tasks import ENDLESS
from attnlab.runs.errors import Invalid, of_system


def map_bytes(path: str | Path) -> np.ndarray:
    """The bytes of a file, uint8 [bytes], read from disk where they are looked at.

    Raises:
      Invalid: the file is missing, empty or cannot be read; the message is one line.
    """
    try:
        if not Path(path).stat().st_size:
            raise Invalid(f"{path} is empty; give a text")
        data = np.memmap(path, np.uint8, "r")
        if bytes(data[:2]) == GZIP:
            raise Invalid(f"{path} is packed, and is read where it lies; unpack it: gunzip -k")
        return data
    except OSError as error:
        raise Invalid(f"{of_system(error)}; give a text file") from None


@dataclasses.dataclass(frozen=True)
class Split:
    """A text in three parts, in the order in which they stand in it.

    Attributes:
      training: part to train on, the first 90 %.
      validation: part to choose a checkpoint on, 5 %.
      test: part to report on, the last 5 %.
    """

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split_of(data: np.ndarray) -> Split:
    """The split of a text's bytes; of enwik8 the usual one, of 90, 5 and 5 M (Al-Rfou 2019, §4).

    >>> [part.size for part in (split_of(np.arange(200)).validation, split_of(np.arange(7)).test)]
    [10, 1]

    Args:
      data: bytes of the text, uint8 [bytes].
    """
    last = -(-data.size // 20)
    first = data.size - 2 * last
    return Split(data[:first], data[first : first + last], data[first + last :])


@dataclasses.dataclass(frozen=True)
class Windows:
    """All windows of a text, by the number of the token where they begin.

    >>> windows = Windows(np.arange(7), length=3)
    >>> len(windows), windows[4]
    (5, array([4, 5, 6], dtype=int32))

    Attributes:
      ids: whole numbers of the text, [n].
      length: number of tokens in a window.
      first_id: number that is added to each: `tokens.NUM_SPECIAL` makes of bytes the ids of
        `tokenizers.Bytes`.

    Raises:
      Invalid: the text is shorter than a window.
    """

    ids: np.ndarray
    length: int
    first_id: int = 0

    def __post_init__(self) -> None:
        as_size("length", self.length)
        if self.ids.size < self.length:
            raise Invalid(
                f"a window has {self.length} tokens and the text {self.ids.size}; give shorter "
                "windows or a longer text"
            )

    def __len__(self) -> int:
        return self.ids.size - self.length + 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The tokens of a window, int32 [length]."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return as_tokens(self.ids[index : index + self.length], self.first_id)


def as_tokens(ids: np.ndarray, first_id: int) -> np.ndarray:
    """The tokens that ids of a text are, int32."""
    return ids.astype(np.int32) + np.int32(first_id)


def random_windows(
    windows: Windows,
    *,
    batch_size: int,
    seed: int,
    num_positions: int | None = None,
    part: Part = WHOLE,
) -> grain.IterDataset:
    """Endless batches of windows that are drawn alike, with a state as `train_batches` has it.

    Args:
      windows: windows to draw from.
      batch_size: number of windows in a global batch.
      seed: seed of the draws.
      num_positions: number of positions of a model that is to learn all of them from shorter
        windows: those of each window begin at a random number. None = no positions.
      part: part of each batch that this process draws, as in `train_batches`.

    Returns:
      A dataset of {"tokens"}, with `num_positions` also "positions", int32
      [batch_size / part.count, length].
    """
    length = windows.length
    require(
        num_positions is None or num_positions >= length,
        f"num_positions must be at least the length; got {num_positions} and {length}",
    )
    part.require_divides(batch_size)

    def draw(_: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        batch = {"tokens": windows[int(rng.integers(len(windows)))]}
        if num_positions is not None:
            start = rng.integers(num_positions - length + 1)
            batch["positions"] = np.arange(start, start + length, dtype=np.int32)
        return batch

    # A window is drawn by its place in the endless order, whichever process draws it.
    order = grain.MapDataset.range(ENDLESS).seed(seed).random_map(draw)
    rows = batch_size // part.count
    mine = order.batch(rows)[part.index :: part.count]
    return mine.to_iter_dataset(grain.ReadOptions(num_threads=0))


def consecutive_windows(
    ids: np.ndarray, *, length: int, batch_size: int, first_id: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Yields a text from its beginning to its end, each token exactly once, the end padded.

    A window's first token is predicted from nothing: shorter windows cost bits.

    Args:
      ids: whole numbers of the text, [n].
      length: number of tokens in a window.
      batch_size: number of rows of every batch; those that remain in the last one are all PAD.
      first_id: number that is added to each, as for `Windows`.

    Yields:
      {"tokens"}, int32 [batch_size, length].
    """
    at_once = batch_size * length
    for start in range(0, ids.size, at_once):
        tokens = np.full(at_once, PAD, np.int32)
        part = as_tokens(ids[start : start + at_once], first_id)
        tokens[: part.size] = part
        yield {"tokens": tokens.reshape(batch_size, length)}
