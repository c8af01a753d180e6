"""Kills a training at random moments, and finds out whether that changed anything."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from attnlab.runs.errors import Stopped
from attnlab.runs.folder import ERRORS
from attnlab.training.curve import read_metrics
from attnlab.training.loop import CHECKPOINTS

__all__ = ["TrainingFailed", "difference_of_runs", "kill_until_done", "run_to_the_end"]

TIMES = ("seconds", "steps_per_second", "tokens_per_second")  # a kill may change these
EARLY = 0.25  # share of the kills that come while the process starts, restores and compiles


class TrainingFailed(Stopped):
    """A training that was not killed failed.

    Attributes:
      output: command of the training, and the last lines that it wrote.
    """

    def __init__(self, status: int, command: Sequence[str], lines: Sequence[str]):
        last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
        super().__init__(
            f"a training ended with status {status}: {last}; what it wrote is in {ERRORS}"
        )
        self.output = "\n".join([shlex.join(command), *lines])


class Process:
    """A training in a process of its own; it has begun when it prints a line with "step "."""

    def __init__(self, command: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-u", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.begun = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("step "):
                self.begun.set()
        self.begun.set()

    def ended(self, within: float) -> bool:
        """Whether the process ends in so many seconds."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kills the process, if it still runs, with kill −9, which it cannot catch."""
        self._process.kill()
        self.finish()

    def finish(self) -> int:
        """Waits for the end of the process; returns its exit status."""
        status = self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


def run_to_the_end(command: Sequence[str]) -> None:
    """Runs the command of a training.

    Raises:
      TrainingFailed: the exit status is not 0.
    """
    process = Process(command)
    try:
        status = process.finish()
    except BaseException:
        process.kill()
        raise
    if status:
        raise TrainingFailed(status, command, process.lines[-20:])


def kill_until_done(
    first: Sequence[str],
    again: Callable[[], Sequence[str] | None],
    *,
    kills: int,
    longest: float,
    seed: int,
    say: Callable[[str], None],
) -> int:
    """Starts a training, kills it, resumes it, …; after the last kill it runs to its end.

    Args:
      first: command that starts the training.
      again: () -> the command that resumes the training, or None if it has no folder yet.
      kills: number of kills.
      longest: seconds after the first step at which a kill comes at the latest.
      seed: seed of the moments of the kills.
      say: (line) -> None; shows a line to the user.

    Returns:
      The number of kills; fewer than `kills` if the training ended before.
    """
    draw = random.Random(seed)
    startup = 5.0
    for kill in range(1, kills + 1):
        process = Process(again() or first)
        began = time.monotonic()
        try:
            if draw.random() < EARLY:
                ended = process.ended(draw.uniform(0, startup))
            else:
                process.begun.wait()
                startup = time.monotonic() - began
                ended = process.ended(draw.uniform(0, longest))
        finally:
            process.kill()
        if ended:
            say(f"the training ended before kill {kill}")
            return kill - 1
        last = next((x for x in reversed(process.lines) if x.startswith("step ")), "no step yet")
        say(f"kill {kill}/{kills} after {time.monotonic() - began:.1f} s: {last}")
    run_to_the_end(again() or first)
    return kills


def difference_of_runs(one: Path, other: Path) -> str | None:
    """What differs between two finished trainings, by their folders; None if nothing does.

    All rows of the curves are compared, except times, and every number of the last checkpoints.
    """
    for a, b in zip(*(_curve(folder) for folder in (one, other)), strict=False):
        if a != b:
            return f"rows of the curves: {json.dumps(a)} and {json.dumps(b)}"
    lengths = [len(_curve(folder)) for folder in (one, other)]
    if lengths[0] != lengths[1]:
        return f"the curves have {lengths[0]} and {lengths[1]} rows"
    state, other_state = (_last_state(folder / CHECKPOINTS) for folder in (one, other))
    for name in sorted(state.keys() | other_state.keys()):
        if not np.array_equal(state.get(name, np.nan), other_state.get(name, np.nan)):
            return f"{name} in the last checkpoints"
    return None


def _curve(folder: Path) -> list[dict[str, Any]]:
    rows = read_metrics(folder)
    return [{name: x for name, x in row.items() if name not in TIMES} for row in rows]


def _last_state(folder: Path) -> dict[str, np.ndarray]:
    # Arrays are restored to one device, whichever devices they were saved from.
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with ocp.training.Checkpointer(folder.resolve()) as checkpoints:
        saved = checkpoints.checkpointables_metadata(None).metadata["state"]
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), saved
        )
        state = checkpoints.load_checkpointables(None, {"state": wanted})["state"]
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in paths}
