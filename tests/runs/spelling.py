"""The smallest experiment that runs in several processes, as a program for tests."""

import dataclasses
import os
import signal
import time

from attnlab.runs import command_line, hosts, loop, processes
from attnlab.runs.errors import Lost, Stopped
from attnlab.runs.flags import Flags, flag
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags."""

    letters: str = flag("abc", "Letters to spell.")
    last: str = flag("goes on", "What the last process does with the letter b.")
    each: bool = flag(False, "Whether each process spells alone.")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    heard: tuple[str, ...] = ()


def run(settings: Settings, folder: Folder) -> int:
    rows = Rows(folder, lambda row: row.name, [Row])

    def measure(name: str) -> list[Row]:
        if name == "b" and processes.index() == processes.count() - 1:
            match settings.last:
                case "breaks":
                    raise RuntimeError("the pen\nbroke")
                case "stops":
                    raise Stopped("no ink")
                case "SIGTERM":
                    os.kill(os.getpid(), signal.SIGTERM)
        if name == "b" and settings.last == "waits":
            time.sleep(600)
        if name == "a" and settings.last == "fails" and processes.prints():
            raise Lost("no letter")
        heard = processes.gather(f"{name}{processes.index()}")
        return [Row(name, tuple(heard))]

    def report() -> loop.Report:
        return loop.Report(" ".join("+".join(one.row.heard) for one in rows.kept.values()))

    job = loop.Job(
        unit="letters",
        measure=measure,
        done=lambda row: row.heard != (),
        title=str,
        line=lambda found: found[0].name,
        report=report,
    )
    return loop.run(job, list(settings.letters), folder, rows, where="paper")


def main(argv: list[str]) -> int:
    def spell(settings: Settings, folder: Folder) -> int:
        on_every_host = hosts.on_every_host if settings.each else lambda run, *rest: run(*rest)
        return on_every_host(run, settings, folder)

    return command_line.run(argv, Settings, spell, doc="Spells.", several=True)


if __name__ == "__main__":
    processes.HEARTBEAT = 10  # no test waits half a minute
    command_line.start(main)
