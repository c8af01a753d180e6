"""Texts and their translations from plain text files, checked when they are opened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from attnlab.data.lines import Row, read_pairs, read_tsv
from attnlab.runs.errors import Invalid, of_system


def open_text(*paths: str | Path) -> list[Row]:
    """Examples {"source", "target"} of UTF-8 texts, in their order; they may be gzipped.

    They stay in memory, about 0.5 KB a pair beside its text; `tfds_source` reads larger data from
    disk.

    Args:
      *paths: path of a text and that of its translation, a sentence a line, or the path of one file
        with both in each line, separated by a tab.

    Raises:
      Invalid: a file that is missing, misaligned or not UTF-8; an empty line. The message is one
        line.
    """
    files = [Path(path) for path in paths]
    rows = list(read_tsv(*files) if len(files) == 1 else read_pairs(*files))
    if not rows:
        raise Invalid(f"there is no text in {' and '.join(map(str, files))}")
    return rows


def content_digest(paths: Iterable[str | Path]) -> str:
    """One hash of what is in the files, in this order."""
    total = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise Invalid(f"{of_system(error)}; give a text file") from error
    return total.hexdigest()
