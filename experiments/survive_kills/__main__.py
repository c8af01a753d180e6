"""The command line of `survive_kills`."""

import math
import sys
from pathlib import Path

from absl import flags
from attnlab.runs.folders import fresh_folder

from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import interruptible
from experiments import survive_kills
from experiments.survive_kills.kills import (
    TrainingFailed,
    difference_of_runs,
    kill_until_done,
    run_to_the_end,
)
from experiments.translate.systems import MODELS

EXPERIMENT = ["-m", "experiments.translate"]


def main(argv: list[str]) -> int:
    """Returns 0 if nothing differs, 1 if something does or a training fails, 2 for a bad flag."""
    given = _flags()
    try:
        if not command_line.parse(given, argv, survive_kills.__doc__):
            return 0
        if not 0 <= given.longest < math.inf:
            raise Invalid(f"--longest={given.longest:g}: give 0 or more seconds")
        with interruptible():  # also a polite kill takes the trainings along
            return _run(given, fresh_folder(Path(given.output_dir), "survive_kills"))
    except (flags.Error, Invalid) as error:
        return command_line.refuse("survive_kills", error)
    except TrainingFailed as error:
        print(f"survive_kills: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("survive_kills: interrupted; nothing was compared", file=sys.stderr)
        return 130


def _run(given: flags.FlagValues, folder: Path) -> int:
    say = command_line.say

    def command(name: str) -> list[str]:
        sizes = [f"--steps={given.steps}", "--validate_every=180", "--checkpoint_every=10"]
        where = [f"--models={given.model}", f"--output_dir={folder / name}"]
        return [*EXPERIMENT, *sizes, "--log_every=5", *where]

    def go_on() -> list[str] | None:
        runs = sorted(path.parent for path in (folder / "killed").glob("*/settings.json"))
        return [*EXPERIMENT, f"--resume={runs[0]}"] if runs else None

    say(f"results: {folder}\nundisturbed: {given.steps} steps")
    run_to_the_end(command("undisturbed"))
    kills = kill_until_done(
        command("killed"),
        go_on,
        kills=given.kills,
        longest=given.longest,
        seed=given.seed,
        say=say,
    )
    one, other = (
        next((folder / name).glob(f"*/{given.model}")) for name in ("undisturbed", "killed")
    )
    different = difference_of_runs(one, other)
    if different:
        say(f"after {kills} kills the runs differ: {different}")
        return 1
    if kills < given.kills:
        say(f"nothing differs, but only {kills} kills came before the end; give more --steps")
        return 1
    say(f"after {kills} kills every row of the curve and every parameter is the same, bit for bit")
    return 0


def _flags() -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    flags.DEFINE_integer("kills", 20, "How many.", lower_bound=1, flag_values=found)
    flags.DEFINE_float("longest", 5.0, "Seconds of training before a kill.", flag_values=found)
    flags.DEFINE_integer("steps", 2400, "Of the training.", lower_bound=1, flag_values=found)
    flags.DEFINE_enum("model", "rnn_search", MODELS, "Which model.", flag_values=found)
    flags.DEFINE_integer("seed", 0, "Of the moments.", flag_values=found)
    return command_line.add_common(found)


if __name__ == "__main__":
    command_line.start(main)
