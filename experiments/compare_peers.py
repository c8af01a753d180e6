"""attnlab beside other people's attention: time and memory of the same work, as ratios.

    python -m experiments.compare_peers
    python -m experiments.compare_peers --rows=sdpa,lsh --repeats=11

Needs the extra `compat` (torch, Keras, transformers, reformer-pytorch), and the CPU only. A fresh
folder gets results.jsonl (every repetition) and report.md (each ratio beside its target). Ctrl-C
keeps what is done and still writes the report.
"""

import signal
import sys
from pathlib import Path

from absl import flags

from attnlab.bench import peers_rows, peers_run

flags.DEFINE_list("rows", list(peers_rows.ROWS), f"What to compare: {', '.join(peers_rows.ROWS)}.")
flags.DEFINE_integer("repeats", 7, "Timed turns of each pair.", lower_bound=1)
flags.DEFINE_float("seconds", 60.0, "A pair takes no more turns after this time.", lower_bound=0.0)
flags.DEFINE_string("output_dir", "results", "Where the fresh folder of this run is made.")
flags.DEFINE_bool("help", False, "Show this text.", short_name="h")

_OWN = ("rows", "repeats", "seconds", "output_dir")


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
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
        return peers_run.compare(
            peers_rows.pairs(given.rows),
            repeats=given.repeats,
            seconds=given.seconds,
            output_dir=Path(given.output_dir),
            flags={name: given[name].value for name in _OWN},
        )
    except (flags.Error, ValueError) as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
