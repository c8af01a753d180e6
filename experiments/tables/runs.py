"""Runs of other experiments, each in a folder that its flags name."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.bench.workers import death
from attnlab.runs.command_line import BAD_FLAG, say
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import SETTINGS, Folder
from attnlab.runs.interrupts import defer_interrupts, signal_of


@dataclasses.dataclass(frozen=True)
class Context:
    """What a run of `tables` gives to a row.

    Attributes:
      scale: scale of ours.
      folder: folder of the trainings.
      seeds: seeds of the trainings.
      data: flags of an experiment that name its data, by the name of the data.
      ran: why each run that was made or found already failed, or "", by its folder.
    """

    scale: str
    folder: Path
    seeds: tuple[int, ...]
    data: Mapping[str, Sequence[str]]
    ran: dict[Path, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Command:
    """A run of an experiment.

    Attributes:
      experiment: name of the experiment.
      flags: flags of the run, without those of seeds, data and folders.
      data: name of the data that it reads, a key of `Context.data`; None = its own.
      trains: whether it trains a model for each seed.
      init_from: run whose models it begins with, of an experiment that trains; None = no run.
    """

    experiment: str
    flags: Sequence[str]
    data: str | None = None
    trains: bool = True
    init_from: Command | None = None

    def place(self, folder: Path) -> Path:
        """The folder of its runs, which its flags name; in that of the run that it begins with.

        Its name has no comma, because a list of folders is written with commas, and is short enough
        for a file system.
        """
        words = [self.experiment, *(flag.removeprefix("--") for flag in self.flags)]
        parent = folder if self.init_from is None else self.init_from.place(folder)
        name = re.sub(r"[^\w.=-]+", "_", " ".join(words))
        return parent / (name if len(name) <= 220 else f"{name[:200]}-{_digest(name)}")


def commands(last: Command, context: Context) -> list[list[str]]:
    """The words behind `launch/local` that make a run and, before it, the one it begins with."""
    if last.init_from is None:
        return [_words(last, context)]
    *before, first = commands(last.init_from, context)
    run = f"{last.init_from.experiment}_run_{_digest(str(last.init_from.place(Path())))}"
    return [*before, [*first, f"--run_dir={run}"], [*_words(last, context), f"--init_from={run}"]]


def make(command: Command, context: Context) -> str:
    """Makes what is missing of a run, and of the one it begins with; why that failed, or "".

    Raises:
      Invalid: its experiment does not accept the flags.
    """
    place = command.place(context.folder)
    if place in context.ran:
        return context.ran[place]
    begins = []
    if command.init_from is not None:
        why = make(command.init_from, context)
        if why:
            return why
        begins = [f"--init_from={_kept(command.init_from, context)}"]
    earlier = _kept(command, context)
    where = f"--output_dir={place}" if earlier is None else f"--resume={earlier}"
    say()
    experiment, *flags = _words(command, context)
    context.ran[place] = run([f"experiments.{experiment}", *flags, *begins, where])
    return context.ran[place]


def rows(command: Command, context: Context) -> list[Mapping[str, Any]]:
    """The rows of a run, as far as it was made."""
    kept = _kept(command, context)
    return [] if kept is None else list(Folder.kept(command.experiment, kept).rows().values())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _words(command: Command, context: Context) -> list[str]:
    seeds = [f"--seeds={','.join(map(str, context.seeds))}"] if command.trains else []
    data = context.data[command.data] if command.data else ()
    return [command.experiment, *command.flags, *seeds, *data]


def _kept(command: Command, context: Context) -> Path | None:
    """The last of its runs; None = there is none."""
    found = command.place(context.folder).glob(f"*/{SETTINGS}")
    return max((path.parent for path in found), default=None)


def run(words: Sequence[str]) -> str:
    """Runs a module to its end; why it failed, or "".

    It has a session of its own, so that Ctrl-C reaches it once, from here; it keeps what it has. If
    this process is killed it ends too, as `child` says.

    Raises:
      Invalid: the module does not accept its flags; what it said stands above.
    """
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "experiments.tables.child", *words],
        stdin=subprocess.PIPE,  # held open as long as this process waits for it
        start_new_session=True,
        env=dict(os.environ, PYTHONPATH=paths),
    ) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt as error:
            process.send_signal(signal_of(error))
            with defer_interrupts():
                process.wait()
            raise
    said = shlex.join(["python", "-m", *words])
    if status == BAD_FLAG:
        raise Invalid(f"{said}: not accepted")
    return f"{said}: {death(status)}" if status else ""
