"""The command line of `host_speed`, and what it does."""

from __future__ import annotations

import dataclasses
import os

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import host_speed
from experiments.host_speed import report
from experiments.host_speed.measure import (
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
        return loop.Report(report.markdown(told, settings), said=report.tables(told.rows))

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


if __name__ == "__main__":
    command_line.start(main)
