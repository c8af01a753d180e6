"""attnlab beside other people's attention: time and memory of the same work, as ratios.

    python -m experiments.compare_peers
    python -m experiments.compare_peers --rows=sdpa,lsh --repeats=11
    python -m experiments.compare_peers --resume=results/compare_peers-20261120-101500

Needs the extra `compat` (torch, Keras, transformers, reformer-pytorch), and the CPU only. A fresh
folder gets results.jsonl (every repetition), settings.json and report.md (each ratio beside its
target, those that are not met first). Ctrl-C keeps what is done and still writes the report;
--resume=FOLDER does only what is missing or failed there.
"""

import math
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import compare, peers_rows, peers_run
from attnlab.records import command_line
from attnlab.records.interrupts import interruptible

_OWN = ("rows", "repeats", "seconds")


def main(argv: list[str]) -> int:
    """Parses and compares; a bad flag or a missing package ends in one line and status 2."""
    given = _flags()
    try:
        if not command_line.parse(given, argv, __doc__):
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
