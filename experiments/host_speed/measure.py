"""Times of encoding pairs, and of writing and reading checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attnlab.data import dates, files, subwords, tokenizers
from attnlab.data.batching import train_batches
from attnlab.data.encoding import Source
from attnlab.runs.errors import Invalid
from attnlab.runs.units import duration, human
from attnlab.tokens import PAD
from attnlab.training.checkpoint import Checkpoints
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
    one = len(settings.data_files) == 1
    opened: Callable[..., Source] = files.open_tsv if one else files.open_pairs
    source = opened(*settings.data_files, split="train", cache_dir=settings.cache_dir)
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
