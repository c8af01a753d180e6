"""`host_speed`: times of encoding pairs and of writing and reading checkpoints, in two tables."""

import contextlib
import dataclasses
import os
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attnlab.data import dates, files, subwords, tokenizers
from attnlab.data.batching import train_batches
from attnlab.data.encoding import Source
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, so_far
from attnlab.runs.rows import Rows
from attnlab.runs.units import duration, human
from attnlab.tokens import PAD
from attnlab.training.checkpoint import Checkpoints
from experiments import host_speed
from experiments.host_speed.settings import POOL, Settings

MIB = 2**20
ARRAYS = 16  # in a state
MAX_LENGTH = 256  # tokens


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Pairs that became batches.

    Attributes:
      num_workers: number of processes that encoded; 0 = a thread.
      pairs: number of pairs.
      tokens: number of tokens of sources and targets.
      seconds: time that it took.
      load: load average of the machine over the minute before.
    """

    num_workers: int
    pairs: int
    tokens: int
    seconds: float
    load: float | None = None

    @property
    def rate(self) -> float:
        """Pairs a second."""
        return self.pairs / self.seconds

    def line(self) -> str:
        """The row in a few words."""
        return f"{self.rate:,.0f} pairs/s"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A state that was written and read.

    Attributes:
      mib: size of the state in MiB.
      written: times until it was on the disk, in seconds.
      read: times until it was in memory again, in seconds.
      load: load average of the machine over the minute before.
    """

    mib: int
    written: tuple[float, ...]
    read: tuple[float, ...]
    load: float | None = None

    def line(self) -> str:
        """The row in a few words."""
        times = (duration(statistics.median(one)) for one in (self.written, self.read))
        return "written in {}, read in {}".format(*times)


Item = tuple[str, int]
Row = Encoding | Checkpoint


class Corpus(NamedTuple):
    """Sentence pairs and the tokenizer of both sides."""

    source: Source
    tokenizer: tokenizers.Tokenizer


def require_pairs(corpus: Corpus, settings: Settings) -> None:
    """Refuses more pairs than there are."""
    if len(corpus.source) < settings.pairs:
        raise Invalid(
            f"--pairs={settings.pairs}: there are {len(corpus.source)}, and none is encoded twice; "
            "give fewer, or more text"
        )


def require_room(mib: int, folder: Path) -> None:
    """Refuses a checkpoint that the disk of a folder, which need not be there yet, cannot take."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < 1.5 * mib * MIB:
        raise Invalid(f"--mib={mib}: {folder} has {human(free)} free; give less, or another folder")


def encode(corpus: Corpus, settings: Settings, num_workers: int) -> Encoding:
    """Encodes pairs from the moment when the first pool of them is there.

    Raises:
      Invalid: there are too few pairs.
    """
    require_pairs(corpus, settings)
    source, tokenizer = corpus
    batches = train_batches(
        source,
        tokenizer,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=MAX_LENGTH,
        seed=0,
        pool_batches=POOL,
        same_length=True,
        num_workers=num_workers,
    )
    tokens = 0
    with contextlib.closing(iter(batches)) as iterator:
        next(iterator)
        start = time.perf_counter()
        # The last of these is the first of its pool: as many pools were encoded meanwhile.
        for _ in range(settings.pools * POOL):
            tokens += sum(int((x != PAD).sum()) for x in next(iterator).values())
        seconds = time.perf_counter() - start
    return Encoding(num_workers, settings.pools * POOL * settings.batch_size, tokens, seconds)


def open_corpus(settings: Settings) -> Corpus:
    """The pairs of the files, with a vocabulary of their own, or dates.

    Raises:
      Invalid: files are missing, misaligned or not text.
    """
    if not settings.data_files:
        return Corpus(dates.Dates(), tokenizers.Bytes())
    source = files.open_text(*settings.data_files, cache_dir=settings.cache_dir)
    sides = ("source", "target")
    tokenizer = subwords.train_sentencepiece(
        source, sides, vocab_size=settings.vocab_size, cache_dir=settings.cache_dir
    )
    return Corpus(source, tokenizer)


def checkpoint(mib: int, folder: Path, repeats: int) -> Checkpoint:
    """Writes a state of random numbers into a folder, reads it, and removes it.

    Raises:
      Invalid: the disk has no room for it.
    """
    require_room(mib, folder)
    random = np.random.default_rng(0)
    sizes = np.full(ARRAYS, mib * MIB // 4 // ARRAYS)
    state = {
        str(i): jax.device_put(random.standard_normal(n, np.float32)) for i, n in enumerate(sizes)
    }
    times = [_written_and_read(state, folder / f"checkpoint-{i}") for i in range(repeats)]
    written, read = zip(*times, strict=True)
    return Checkpoint(mib, written, read)


def _written_and_read(state: dict[str, jax.Array], folder: Path) -> tuple[float, float]:
    shardings = jax.tree.map(lambda x: x.sharding, state)
    try:
        with Checkpoints(folder, {}) as checkpoints:
            start = time.perf_counter()
            checkpoints.save(1, state, data={}, meter={}, wait=True)
            _until_on_disk(folder)
            written = time.perf_counter() - start
            start = time.perf_counter()
            jax.block_until_ready(checkpoints.restore(state, shardings, 1).state)
            return written, time.perf_counter() - start
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _until_on_disk(folder: Path) -> None:
    """Waits for the disk, and lets the system forget what it holds of the files in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
    paths = tuple(map(Path, settings.data_files))
    name = ",".join(path.name for path in paths) or "dates"
    rows.environment["input"] = {"name": name, "sha256": files.content_digest(paths)}
    rows.require_same_input()
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
        done = so_far(rows, {_title(item): [item] for item in items}, settings)
        return loop.Report(_markdown(done, settings), said=tables(done.rows))

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


def _markdown(done: SoFar[Row], settings: Settings) -> str:
    text = (
        f"sentence pairs, a joint SentencePiece vocabulary of {settings.vocab_size:,}"
        if settings.data_files
        else "dates, byte by byte"
    )
    return document(
        "# What a host gives its accelerators",
        tables(done.rows),
        f"Pairs: {text}, at most {MAX_LENGTH} tokens, batches of {settings.batch_size} sorted by "
        "length, each pair once, nothing else running but the loop that takes the batches. "
        f"Checkpoints: random float32 numbers, {settings.repeats} times, medians; written until "
        "they are on the disk, read after the system was told to forget them. The load is how many "
        "processes wanted a core over the minute before, on average.",
        done.missing,
        done.origin,
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
