"""The command line of `survive_kills`, and what it does."""

from __future__ import annotations

from attnlab.runs import command_line
from attnlab.runs.command_line import say
from attnlab.runs.folder import Folder
from attnlab.runs.interrupts import interruptible, signal_of
from experiments import survive_kills
from experiments.survive_kills.kills import (
    TrainingFailed,
    difference_of_runs,
    kill_until_done,
    run_to_the_end,
)
from experiments.survive_kills.settings import Settings

EXPERIMENT = ["-m", "experiments.translate"]


def main(argv: list[str]) -> int:
    """Parses the flags, trains, kills and compares."""
    return command_line.run(argv, Settings, run, doc=survive_kills.__doc__, resumes=False)


def run(settings: Settings, folder: Folder) -> int:
    """Trains twice, once undisturbed, and compares; returns 1 if something differs.

    Raises:
      Invalid: the folder cannot be made.
      TrainingFailed: a training that was not killed failed.
    """
    say(f"results: {folder.begin()}")
    try:
        with interruptible():  # SIGTERM, too, then ends the training that runs
            return _compare(settings, folder)
    except TrainingFailed as error:
        folder.note(error.output)
        raise
    except KeyboardInterrupt as error:
        number = signal_of(error)
        say(f"\n{number.name}: nothing was compared")
        return 128 + number


def _compare(settings: Settings, folder: Folder) -> int:
    def command(name: str) -> list[str]:
        sizes = [f"--steps={settings.steps}", "--validate_every=180", "--checkpoint_every=10"]
        where = [f"--models={settings.model}", f"--output_dir={folder.path / name}"]
        return [*EXPERIMENT, *sizes, "--log_every=5", *where]

    def go_on() -> list[str] | None:
        runs = sorted(path.parent for path in (folder.path / "killed").glob("*/settings.json"))
        return [*EXPERIMENT, f"--resume={runs[0]}"] if runs else None

    say(f"undisturbed: {settings.steps} steps")
    processes = settings.processes
    run_to_the_end(command("undisturbed"), processes)
    kills = kill_until_done(
        command("killed"),
        go_on,
        kills=settings.kills,
        longest=settings.longest,
        seed=settings.seed,
        say=say,
        processes=processes,
    )
    one, other = (
        next((folder.path / name).glob(f"*/{settings.model}")) for name in ("undisturbed", "killed")
    )
    different = difference_of_runs(one, other)
    if different:
        say(f"after {kills} kills the runs differ: {different}")
        return 1
    if kills < settings.kills:
        say(f"nothing differs, but only {kills} kills came before the end; give more --steps")
        return 1
    say(f"after {kills} kills every row of the curve and every parameter is the same, bit for bit")
    return 0


if __name__ == "__main__":
    command_line.start(main)
