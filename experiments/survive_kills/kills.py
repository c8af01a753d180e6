"""Kills a training at random moments, and finds out whether that changed anything."""

from __future__ import annotations

import json
import random
import shlex
import signal
import socket
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

PATIENCE = 75.0  # seconds in which the others of several processes must end
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


class Training:
    """A training in processes of its own; it has begun when it prints a line with "step "."""

    def __init__(self, command: Sequence[str], processes: int = 1):
        self._others: list[subprocess.Popen[bytes]] = []
        flags: list[str] = []
        if processes > 1:
            flags = _joined(processes)
            self._others = [
                subprocess.Popen(
                    [sys.executable, *command, *flags, f"--process_id={i}"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for i in range(1, processes)
            ]
            flags = [*flags, "--process_id=0"]
        self._process = subprocess.Popen(
            [sys.executable, "-u", *command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.joined = threading.Event()  # it has said something
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            self.joined.set()
            if line.startswith("step "):
                self.begun.set()
        self.joined.set()
        self.begun.set()

    def ended(self, within: float) -> bool:
        """Whether the process ends in so many seconds."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def strike(self, index: int, number: signal.Signals) -> float:
        """Sends a signal to one of the processes; returns the seconds until all had ended.

        Raises:
          Stopped: one of them still runs after a minute and a quarter.
        """
        began = time.monotonic()
        every: list[subprocess.Popen[Any]] = [self._process, *self._others]
        every[index].send_signal(number)
        for i, one in enumerate(every):
            try:
                one.wait(max(0.1, began + PATIENCE - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Stopped(
                    f"process {i} still runs {PATIENCE:.0f} s after {number.name} to process "
                    f"{index}"
                ) from None
        return time.monotonic() - began

    def kill(self) -> None:
        """Kills the processes that still run, with kill −9, which they cannot catch."""
        self._process.kill()
        for one in self._others:
            one.kill()
        self.finish()

    def finish(self) -> int:
        """Waits for the end of the processes; returns the exit status of the first."""
        status = self._process.wait()
        for one in self._others:
            status = one.wait() or status
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


def _joined(processes: int) -> list[str]:
    """The flags that join processes of this machine, at a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        "--distributed=explicit",
        f"--coordinator=127.0.0.1:{port}",
        f"--num_processes={processes}",
    ]


def run_to_the_end(command: Sequence[str], processes: int = 1) -> None:
    """Runs the command of a training in so many processes.

    Raises:
      TrainingFailed: the exit status is not 0.
    """
    process = Training(command, processes)
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
    processes: int = 1,
) -> int:
    """Starts a training, kills it, resumes it, …; after the last kill it runs to its end.

    Of several processes one is struck, by turns with kill −9 and with SIGTERM; all must end.

    Args:
      first: command that starts the training.
      again: () -> the command that resumes the training, or None if it has no folder yet.
      kills: number of kills.
      longest: seconds after the first step at which a kill comes at the latest.
      seed: seed of the moments of the kills.
      say: (line) -> None; shows a line to the user.
      processes: number of processes of the training.

    Raises:
      Stopped: a process outlives another one by more than a minute.

    Returns:
      The number of kills; fewer than `kills` if the training ended before.
    """
    draw = random.Random(seed)
    startup = 5.0
    for kill in range(1, kills + 1):
        process = Training(again() or first, processes)
        began = time.monotonic()
        try:
            if draw.random() < EARLY:
                if processes > 1:
                    process.joined.wait()
                ended = process.ended(draw.uniform(0, startup))
            else:
                process.begun.wait()
                startup = time.monotonic() - began
                ended = process.ended(draw.uniform(0, longest))
            how = ""
            if processes > 1 and not ended:
                number = (signal.SIGKILL, signal.SIGTERM)[kill % 2]
                victim = draw.randrange(processes)
                seconds = process.strike(victim, number)
                how = f", {number.name} to process {victim}, all ended {seconds:.1f} s later"
        finally:
            process.kill()
        if ended:
            say(f"the training ended before kill {kill}")
            return kill - 1
        last = next((x for x in reversed(process.lines) if x.startswith("step ")), "no step yet")
        say(f"kill {kill}/{kills} after {time.monotonic() - began:.1f} s{how}: {last}")
    run_to_the_end(again() or first, processes)
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
