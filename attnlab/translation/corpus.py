"""Where sentence pairs come from, split in three, and their tokenisers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attnlab.data import dates, files, subwords, tfds_source, tokenizers
from attnlab.data.encoding import Source
from attnlab.data.lines import read_tsv
from attnlab.records.errors import Invalid
from attnlab.training.alignment import Link, known_links
from attnlab.training.bleu import words
from attnlab.translation.settings import SPLITS, Settings

__all__ = ["Corpus", "Drawn", "open_corpus"]

# With one set of files, the end of it is held out.
HELD_OUT = {"train": "train[:98%]", "validation": "train[98%:99%]", "test": "train[99%:]"}
FEWEST = 100  # pairs of which one percent is one


DRAWN = 4  # pairs
DRAWN_WORDS, DRAWN_CHARACTERS = (6, 14), (12, 30)  # of their sources, to fit in a figure


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A pair whose alignment is drawn.

    Attributes:
      source: the text.
      target: the text.
      known: its links between tokens, where they are known.
    """

    source: str
    target: str
    known: frozenset[Link] = frozenset()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentence pairs and how they become tokens.

    Attributes:
      name: for the report.
      splits: {"train", "validation", "test"}, examples {"source", "target"} by index.
      source_tokenizer: of the sources.
      target_tokenizer: of the targets.
      measure: "BLEU", or "exact match" where a target has one right form.
      drawn: pairs whose alignments are drawn.
    """

    name: str
    splits: dict[str, Source]
    source_tokenizer: tokenizers.Tokenizer
    target_tokenizer: tokenizers.Tokenizer
    measure: str
    drawn: tuple[Drawn, ...]

    def identity(self) -> dict[str, Any]:
        """What a checkpoint is checked against."""
        return {
            "data": self.name,
            "pairs": {name: len(split) for name, split in self.splits.items()},
            "tokenizers": [self.source_tokenizer.digest, self.target_tokenizer.digest],
        }


def open_corpus(settings: Settings) -> Corpus:
    """The corpus that the settings ask for; prepared and tokenisers trained, if need be.

    Raises:
      Invalid: files that are missing, misaligned or not text; a vocabulary that is too large.
    """
    preset = settings.chosen_preset()
    if not settings.has_text:
        by_bytes = tokenizers.Bytes()
        test = dates.Dates("test", size=1000)
        of_dates: dict[str, Source] = {
            "train": dates.Dates(seed=settings.seed),
            "validation": dates.Dates("validation", size=512),
            "test": test,
        }
        drawn = _drawn(test, len, DRAWN_CHARACTERS, test.alignment)
        return Corpus("dates", of_dates, by_bytes, by_bytes, "exact match", drawn)
    splits = _of_tfds(settings) if settings.tfds_name else _of_files(settings)
    if preset.tokenizer == "bytes":
        made: list[tokenizers.Tokenizer] = [tokenizers.Bytes()] * 2
    else:
        made = [
            subwords.train_sentencepiece(
                splits["train"],
                [side],
                vocab_size=preset.vocab_size,
                cache_dir=settings.cache_dir or None,
            )
            for side in ("source", "target")
        ]
    name = settings.tfds_name or " ".join(settings.data_files)
    drawn = _drawn(splits["test"], words, DRAWN_WORDS)
    if settings.draw_file:
        given = read_tsv(Path(settings.draw_file))
        drawn = tuple(Drawn(pair["source"], pair["target"]) for pair in given)
    return Corpus(name, splits, made[0], made[1], "BLEU", drawn)


def _of_files(settings: Settings) -> dict[str, Source]:
    given = {
        "train": settings.data_files,
        "validation": settings.validation_files,
        "test": settings.test_files,
    }
    if given["test"]:
        return {name: _open(paths, "train", settings) for name, paths in given.items()}
    pairs = len(_open(given["train"], "train", settings))
    if pairs < FEWEST:
        raise Invalid(
            f"--data_files: of {pairs} pairs one percent is none, so none can be held out; give "
            "--validation_files and --test_files as well"
        )
    return {name: _open(given["train"], part, settings) for name, part in HELD_OUT.items()}


def _open(paths: Sequence[str], part: str, settings: Settings) -> Source:
    cache_dir = settings.cache_dir or None
    if len(paths) == 1:
        return files.open_tsv(paths[0], split=part, cache_dir=cache_dir)
    return files.open_pairs(*paths, split=part, cache_dir=cache_dir)


def _of_tfds(settings: Settings) -> dict[str, Source]:
    features = None
    if settings.direction:
        features = dict(zip(("source", "target"), settings.direction.split("-"), strict=True))
    folder = Path(settings.data_dir).expanduser()
    return {
        name: tfds_source.open_tfds(
            settings.tfds_name, split=name, data_dir=folder, features=features
        )
        for name in SPLITS
    }


def _drawn(
    test: Source,
    size: Callable[[str], int],
    sizes: tuple[int, int],
    origins: Callable[[int], Sequence[Iterable[int]]] | None = None,
) -> tuple[Drawn, ...]:
    """The first pairs whose source has a size between the two, with the links of their tokens."""
    found: list[Drawn] = []
    for i in range(len(test)):
        source, target = test[i]["source"], test[i]["target"]
        if sizes[0] <= size(source) <= sizes[1]:
            known = known_links(origins(i))[1] if origins else ()
            found.append(Drawn(source, target, frozenset(known)))
        if len(found) == DRAWN:
            break
    return tuple(found)
