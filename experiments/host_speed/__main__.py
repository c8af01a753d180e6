"""The command line of `host_speed`, what it does, and its report: two tables."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Sequence

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, so_far
from attnlab.runs.rows import Rows
from attnlab.runs.units import duration
from experiments import host_speed
from experiments.host_speed.measure import (
    MAX_LENGTH,
    Checkpoint,
    Encoding,
    checkpoint,
    encode,
    open_corpus,
    require_pairs,
    require_room,
)
from experiments.host_speed.settings import Settings

Item = tuple[str, int]
Row = Encoding | Checkpoint


def main(argv: list[str]) -> int:
    """Parses the flags and measures."""
    return command_line.run(argv, Settings, run, doc=host_speed.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Measures encoding and checkpoints in this process.

    Raises:
      Invalid: files cannot be read, there are too few pairs, the disk has no room, or the folder
        cannot be made.
    """
    corpus = open_corpus(settings)
    rows: Rows[Item, Row] = Rows(folder, _key, [Encoding, Checkpoint])
    rows.environment = provenance.describe(("grain", "orbax-checkpoint", "sentencepiece"))
    items = [("encode", number) for number in dict.fromkeys(settings.num_workers)]
    items += [("checkpoint", mib) for mib in dict.fromkeys(settings.mib)]
    for what, number in items:
        if (what, number) not in rows.kept:
            if what == "encode":
                require_pairs(corpus, settings)
            else:
                require_room(number, folder.wanted)

    def measure(item: Item) -> list[Row]:
        what, number = item
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        row: Row
        if what == "encode":
            row = encode(corpus, settings, number)
        else:
            row = checkpoint(number, folder.path, settings.repeats)
        return [dataclasses.replace(row, load=load)]

    def reported() -> loop.Report:
        told = so_far(rows, {_title(item): [item] for item in items}, settings)
        return loop.Report(_markdown(told, settings), said=tables(told.rows))

    job = loop.Job(unit="measurements", measure=measure, title=_title, report=reported)
    return loop.run(job, items, folder, rows, where=provenance.devices_of(rows.environment))


def _key(row: Row) -> Item:
    if isinstance(row, Encoding):
        return "encode", row.num_workers
    return "checkpoint", row.mib


def _title(item: Item) -> str:
    what, number = item
    if what == "encode":
        return f"encoding, {number} workers" if number else "encoding, a thread"
    return f"checkpoint of {number} MiB"


def _markdown(told: SoFar[Row], settings: Settings) -> str:
    text = (
        f"sentence pairs, a joint SentencePiece vocabulary of {settings.vocab_size:,}"
        if settings.data_files
        else "dates, byte by byte"
    )
    return document(
        "# What a host gives its accelerators",
        tables(told.rows),
        f"Pairs: {text}, at most {MAX_LENGTH} tokens, batches of {settings.batch_size} sorted by "
        "length, each pair once, nothing else running but the loop that takes the batches. "
        f"Checkpoints: random float32 numbers, {settings.repeats} times, medians; written until "
        "they are on the disk, read after the system was told to forget them. The load is how many "
        "processes wanted a core over the minute before, on average.",
        told.missing,
        told.origin,
    )


def tables(rows: Sequence[Row]) -> str:
    """Pairs a second by workers, and times by size."""
    encodings = [
        [
            str(row.num_workers) if row.num_workers else "a thread",
            f"{row.rate:,.0f}",
            f"{row.tokens / row.seconds:,.0f}",
            f"{row.pairs:,}",
            _load(row.load),
        ]
        for row in rows
        if isinstance(row, Encoding)
    ]
    checkpoints = [
        [
            f"{row.mib} MiB",
            *_times(row.mib, row.written),
            *_times(row.mib, row.read),
            _load(row.load),
        ]
        for row in rows
        if isinstance(row, Checkpoint)
    ]
    headers = (
        ["workers", "pairs a second", "tokens a second", "pairs", "load before"],
        ["checkpoint", "written in", "a GiB", "read in", "a GiB", "load before"],
    )
    parts = zip(headers, (encodings, checkpoints), strict=True)
    return "\n\n".join(markdown_table(header, cells) for header, cells in parts if cells)


def _load(load: float | None) -> str:
    return "" if load is None else f"{load:.1f}"


def _times(mib: int, seconds: Sequence[float]) -> tuple[str, str]:
    middle = statistics.median(seconds)
    return duration(middle), duration(middle / mib * 1024)


if __name__ == "__main__":
    command_line.start(main)
