"""attnlab beside other people's attention: time and memory of the same work, as ratios.

    python -m experiments.compare_peers
    python -m experiments.compare_peers --rows=sdpa,lsh --repeats=11
    python -m experiments.compare_peers --resume=results/compare_peers-20261120-101500

Needs the extra `compat` (torch, Keras, transformers, reformer-pytorch), and the CPU only. A fresh
folder gets results.jsonl (every repetition), settings.json and report.md (each ratio beside its
target, those that are not met first). Ctrl-C keeps what is done and still writes the report;
--resume=FOLDER does only what is missing or failed there.
"""

import sys
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import compare, peers_rows, peers_run
from attnlab.records.interrupts import interruptible

flags.DEFINE_list("rows", list(peers_rows.ROWS), f"What to compare: {', '.join(peers_rows.ROWS)}.")
flags.DEFINE_integer("repeats", 7, "Timed turns of each pair.", lower_bound=1)
flags.DEFINE_float("seconds", 60.0, "A pair takes no more turns after this time.", lower_bound=0.0)
flags.DEFINE_string("output_dir", "results", "Where the fresh folder of this run is made.")
flags.DEFINE_string("resume", None, "The folder of an earlier run to complete, with its flags.")
flags.DEFINE_bool("help", False, "Show this text.", short_name="h")

_OWN = ("rows", "repeats", "seconds")


def main(argv: list[str]) -> int:
    """Parses and compares; a bad flag or a missing package ends in one line and status 2."""
    try:
        rest = flags.FLAGS(argv)[1:]
        given = flags.FLAGS
        if given.help:
            print(f"{__doc__}\nflags:\n{given.main_module_help()}")
            return 0
        if rest:
            raise ValueError(f"{rest[0]!r} is not a flag; write --name=value")
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
        print(f"compare_peers: {error}", file=sys.stderr)
        return 2


def _settings(given: flags.FlagValues) -> tuple[dict[str, Any], Path | None]:
    if given.resume is None:
        return {name: given[name].value for name in _OWN}, None
    path = Path(given.resume)
    if given["output_dir"].present:
        raise ValueError("--output_dir and --resume exclude each other; drop one")
    stored = peers_run.stored_settings(path)
    compare.check_resumed({n: given[n].value for n in _OWN if given[n].present}, stored, path)
    return stored, path


if __name__ == "__main__":
    sys.exit(main(sys.argv))
