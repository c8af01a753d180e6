"""Sentence pairs from dates, files or TFDS, in three splits, and their tokenizers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnlab.data import dates, files, subwords, tfds_source, tokenizers
from attnlab.data.dates import Dates
from attnlab.data.encoding import Source
from attnlab.data.lines import read_tsv
from attnlab.runs.errors import Invalid
from attnlab.training.alignment import Link, known_links
from attnlab.training.bleu import words
from experiments.translate.settings import SPLITS, TFDS, Settings

FEWEST = 100  # pairs; one percent of fewer is none
HASHED = 1000  # examples of a split: to read all of a large data set takes minutes

DRAWN = 4  # number of pairs whose alignment is drawn
DRAWN_WORDS, DRAWN_CHARACTERS = (6, 14), (12, 30)  # in the source, to fit in a figure


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A pair whose alignment is drawn.

    Attributes:
      source: text of the source.
      target: text of the target.
      known: links between the tokens of the two; empty where they are not known.
    """

    source: str
    target: str
    known: frozenset[Link] = frozenset()


class Tokenizers(NamedTuple):
    """The tokenizers of sources and of targets; the same one if the vocabulary is joint."""

    source: tokenizers.Tokenizer
    target: tokenizers.Tokenizer


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentence pairs and how they become tokens.

    Attributes:
      name: name of the data, for the report.
      splits: examples {"source", "target"} by index, of each split "train", "validation", "test".
      tokenizers: (joint) -> tokenizers with one vocabulary for source and target (True) or one for
        each (False); trained at the first call.
      measure: "BLEU", or "exact match" where a target has one right form.
      drawn: pairs whose alignments are drawn in the report.
      digest: hash of all files, or of the sizes and some examples of other data.
    """

    name: str
    splits: dict[str, Source]
    tokenizers: Callable[[bool], Tokenizers]
    measure: str
    drawn: tuple[Drawn, ...]
    digest: str = ""

    def of_seed(self, seed: int) -> Corpus:
        """The corpus to train on with a seed: it draws other dates; a text stays the same."""
        if not isinstance(self.splits["train"], Dates):
            return self
        return dataclasses.replace(self, splits={**self.splits, "train": dates.Dates(seed=seed)})

    @property
    def drawn_name(self) -> str:
        """The name of the pairs that are drawn: other pairs have another."""
        pairs = [(one.source, one.target) for one in self.drawn]
        return f"pairs {hashlib.sha256(str(pairs).encode()).hexdigest()[:8]}"


def open_corpus(settings: Settings) -> Corpus:
    """The corpus that the settings ask for; its files are prepared if they are not yet.

    Raises:
      Invalid: files are missing, misaligned or not text. `Corpus.tokenizers` raises it if the
        vocabulary is too large for the text.
    """
    if not settings.has_text:
        by_bytes = Tokenizers(tokenizers.Bytes(), tokenizers.Bytes())
        test = dates.Dates("test", size=1000)
        of_dates: dict[str, Source] = {
            "train": dates.Dates(),
            "validation": dates.Dates("validation", size=512),
            "test": test,
        }
        drawn = _draw(test, len, DRAWN_CHARACTERS, test.alignment)
        return Corpus(
            "dates", of_dates, lambda joint: by_bytes, "exact match", drawn, _digest(of_dates)
        )
    splits = _of_tfds(settings.tfds_name, settings) if settings.tfds_name else _of_files(settings)
    paths = (*settings.data_files, *settings.validation_files, *settings.test_files)
    digest = files.content_digest(paths) if paths else _digest(splits)
    made = functools.cache(functools.partial(_train_tokenizers, splits["train"], settings))
    name = settings.tfds_name or " ".join(Path(file).name for file in settings.data_files)
    drawn = _draw(splits["test"], words, DRAWN_WORDS)
    if settings.draw_file:
        given = read_tsv(Path(settings.draw_file))
        drawn = tuple(Drawn(pair["source"], pair["target"]) for pair in given)
    return Corpus(name, splits, made, "BLEU", drawn, digest)


def _digest(splits: Mapping[str, Source]) -> str:
    """One hash of the number of examples of each split, and of some of them."""
    total = hashlib.sha256()
    for name, split in splits.items():
        every = max(1, len(split) // HASHED)
        some = [split[i] for i in range(0, len(split), every)]
        total.update(f"{name} {len(split)} {some}".encode())
    return total.hexdigest()


def _train_tokenizers(split: Source, settings: Settings, joint: bool) -> Tokenizers:
    vocab_size = settings.vocab_size_of(joint=joint)

    def train(*sides: str) -> tokenizers.Tokenizer:
        return subwords.train_sentencepiece(
            split, sides, vocab_size=vocab_size, cache_dir=settings.cache_dir
        )

    if joint:
        both = train("source", "target")
        return Tokenizers(both, both)
    return Tokenizers(train("source"), train("target"))


def _of_files(settings: Settings) -> dict[str, Source]:
    given = {
        "train": settings.data_files,
        "validation": settings.validation_files,
        "test": settings.test_files,
    }
    if given["test"]:
        return {name: files.open_text(*paths) for name, paths in given.items()}
    pairs = files.open_text(*given["train"])
    if len(pairs) < FEWEST:
        raise Invalid(
            f"--data_files: of {len(pairs)} pairs one percent is none, so none can be held out; "
            "give --validation_files and --test_files as well"
        )
    validation, test = round(0.98 * len(pairs)), round(0.99 * len(pairs))
    return {"train": pairs[:validation], "validation": pairs[validation:test], "test": pairs[test:]}


def _of_tfds(name: str, settings: Settings) -> dict[str, Source]:
    features = None
    if settings.direction:
        features = dict(zip(("source", "target"), settings.direction.split("-"), strict=True))
    folder = Path(os.path.expanduser(settings.data_dir or TFDS))
    return {
        split: tfds_source.open_tfds(name, split=split, data_dir=folder, features=features)
        for split in SPLITS
    }


def _draw(
    test: Source,
    size: Callable[[str], int],
    sizes: tuple[int, int],
    origins: Callable[[int], Sequence[Iterable[int]]] | None = None,
) -> tuple[Drawn, ...]:
    """The first pairs whose source has a size within `sizes`, with known links of their tokens."""
    found: list[Drawn] = []
    for i in range(len(test)):
        source, target = test[i]["source"], test[i]["target"]
        if sizes[0] <= size(source) <= sizes[1]:
            known = known_links(origins(i))[1] if origins else ()
            found.append(Drawn(source, target, frozenset(known)))
        if len(found) == DRAWN:
            break
    return tuple(found)
