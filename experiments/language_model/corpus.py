"""A text as ids in three parts: bytes, which stay on disk, or characters."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnlab.bench import inputs
from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.tokenizers import Bytes, Characters
from attnlab.data.windows import Split, Windows, consecutive_windows, map_bytes, split_of
from attnlab.runs.errors import Invalid
from experiments.language_model.settings import Settings


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text that is read and split.

    Attributes:
      text: name and bytes of the text.
      tokenizer: tokenizer of the ids; to an id of the parts NUM_SPECIAL is added.
      split: ids of the three parts.
    """

    text: inputs.Text
    tokenizer: Bytes | Characters
    split: Split

    @property
    def name(self) -> str:
        """The name of the text's file, without its folder, which is of one machine."""
        return Path(self.text.name).name

    @property
    def digest(self) -> str:
        """The SHA-256 of its bytes."""
        return self.text.digest

    def windows(self, length: int) -> Windows:
        """The windows to train on."""
        return Windows(self.split.training, length, first_id=NUM_SPECIAL)

    def held_out(self, part: str, length: int, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """The windows of a part, "validation" or "test", one after the other."""
        ids = getattr(self.split, part)
        return consecutive_windows(ids, length=length, batch_size=batch_size, first_id=NUM_SPECIAL)


def read(settings: Settings) -> Corpus:
    """The text of the settings.

    Raises:
      Invalid: it is missing, is shorter than a window, is not UTF-8 where characters are asked
        for, or has a character in its later parts that its first part does not have.
    """
    if settings.input is None:
        text = inputs.read()
    else:
        text = inputs.Text(settings.input, map_bytes(settings.input))
    split = split_of(text.data)
    tokenizer: Bytes | Characters = Bytes()
    if settings.vocabulary == "characters":
        tokenizer, split = _characters(split)
    longest = max(settings.lengths)
    if split.training.size < longest:
        raise Invalid(
            f"--lengths={longest}: a window is longer than the training part of {text.name}, "
            f"{split.training.size} tokens; give shorter windows or a longer text"
        )
    return Corpus(text, tokenizer, split)


def _characters(split: Split) -> tuple[Characters, Split]:
    parts = _decode(split)
    vocabulary = np.unique(parts["training"])
    tokenizer = Characters("".join(map(chr, vocabulary)))
    for name, part in parts.items():
        unknown = np.setdiff1d(part, vocabulary)
        # Read as UNK it would be predicted as one of many, and its bits would not be those of it.
        if unknown.size:
            raise Invalid(
                f"--vocabulary=characters: the {name} part has {chr(unknown[0])!r}, which the "
                "training part does not have, and so no code for it; give --vocabulary=bytes"
            )
    ids = [np.searchsorted(vocabulary, part) for part in parts.values()]
    return tokenizer, Split(*ids)


def _decode(split: Split) -> dict[str, np.ndarray]:
    """The code points of the parts, cut between characters."""
    parts = {name: getattr(split, name) for name in ("training", "validation", "test")}
    rest, found = b"", {}
    for name, part in reversed(parts.items()):
        data = part.tobytes() + rest
        # What a part begins with of a character belongs to the part before.
        start = next(
            i for i in range(len(data) + 1) if (data[i : i + 1] or b"\0")[0] & 0xC0 != 0x80
        )
        if name == "training":
            start = 0
        rest = data[:start]
        try:
            text = data[start:].decode()
        except UnicodeDecodeError as error:
            raise Invalid(
                f"--vocabulary=characters: the text is not UTF-8 ({error.reason}); give "
                "--vocabulary=bytes"
            ) from None
        found[name] = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return dict(reversed(found.items()))
