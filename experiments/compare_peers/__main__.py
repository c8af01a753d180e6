"""The command line of `compare_peers`."""

import math
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.runs import command_line
from attnlab.runs.interrupts import interruptible
from experiments import compare_peers
from experiments.compare_lengths import run as compare
from experiments.compare_peers import rows as peers_rows
from experiments.compare_peers import run as peers_run

_OWN = ("rows", "repeats", "seconds")


def main(argv: list[str]) -> int:
    """Parses and compares; a bad flag or a missing package ends in one line and status 2."""
    given = _flags()
    try:
        if not command_line.parse(given, argv, compare_peers.__doc__):
            return 0
        settings, resume = _settings(given)
        with interruptible():
            return peers_run.compare(
                peers_rows.pairs(settings["rows"]),
                repeats=settings["repeats"],
                seconds=settings["seconds"],
                output_dir=Path(given.output_dir),
                resume=resume,
            )
    except (flags.Error, ValueError) as error:
        return command_line.refuse("compare_peers", error)


def _flags() -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    rows = list(peers_rows.ROWS)
    flags.DEFINE_list("rows", rows, f"What to compare: {', '.join(rows)}.", flag_values=found)
    flags.DEFINE_integer(
        "repeats", 7, "Timed turns of each pair.", lower_bound=1, flag_values=found
    )
    after = "A pair takes no more turns after this time."
    flags.DEFINE_float("seconds", 60.0, after, lower_bound=0.0, flag_values=found)
    again = "The folder of an earlier run to complete, with its flags."
    flags.DEFINE_string("resume", None, again, flag_values=found)
    return command_line.add_common(found)


def _settings(given: flags.FlagValues) -> tuple[dict[str, Any], Path | None]:
    if not given.seconds < math.inf:  # nor is NaN
        raise ValueError(f"--seconds={given.seconds}: give a finite number")
    if given.resume is None:
        return {name: given[name].value for name in _OWN}, None
    path = Path(given.resume)
    stored = peers_run.stored_settings(path)
    compare.check_resumed({n: given[n].value for n in _OWN if given[n].present}, stored, path)
    return stored, path


if __name__ == "__main__":
    command_line.start(main)
