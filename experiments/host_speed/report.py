"""The report of `host_speed`: two tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import duration
from experiments.host_speed.measure import MAX_LENGTH, Checkpoint, Encoding
from experiments.host_speed.settings import Settings

__all__ = ["markdown", "tables"]


def markdown(told: SoFar[Encoding | Checkpoint], settings: Settings) -> str:
    """The whole report of a run as far as it is done, with its settings."""
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


def tables(rows: Sequence[Encoding | Checkpoint]) -> str:
    """Pairs a second by workers, and times by size."""
    encodings = [
        [
            str(one.num_workers) if one.num_workers else "a thread",
            f"{one.rate:,.0f}",
            f"{one.tokens / one.seconds:,.0f}",
            f"{one.pairs:,}",
            _load(one.load),
        ]
        for one in rows
        if isinstance(one, Encoding)
    ]
    checkpoints = [
        [
            f"{one.mib} MiB",
            *_times(one.mib, one.written),
            *_times(one.mib, one.read),
            _load(one.load),
        ]
        for one in rows
        if isinstance(one, Checkpoint)
    ]
    header = ["checkpoint", "written in", "a GiB", "read in", "a GiB", "load before"]
    parts = [
        markdown_table(
            ["workers", "pairs a second", "tokens a second", "pairs", "load before"], encodings
        ),
        markdown_table(header, checkpoints),
    ]
    return "\n\n".join(
        part for part, rows in zip(parts, (encodings, checkpoints), strict=True) if rows
    )


def _load(load: float | None) -> str:
    return "" if load is None else f"{load:.1f}"


def _times(mib: int, seconds: Sequence[float]) -> tuple[str, str]:
    middle = statistics.median(seconds)
    return duration(middle), duration(middle / mib * 1024)
