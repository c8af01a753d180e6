"""How many hash rounds LSH attention needs: what it sees of full attention, on real activations.

    python -m experiments.hash_quality
    python -m experiments.hash_quality --data_files=shakespeare.txt --train_steps=1000
    python -m experiments.hash_quality --length=8192 --rounds=1,4,16 --chunk_sizes=64,128

A small causal model is trained for a moment on the bytes of a text. The queries, keys and values
that its layers make of bytes it has not seen are then hashed, and LSH attention is compared with
full attention: the share of the attention mass that it sees, the recall of the largest weights, the
error of its context, the sizes of the buckets. The first value of each list is the base; the others
are tried one at a time, each over --rounds. A fresh folder gets results.jsonl, report.md and two
figures as SVG and PNG. Ctrl-C keeps what is done. The defaults take two minutes on two cores.
"""

import signal
import sys
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import hash_quality_run
from attnlab.bench.hash_quality import CENTRING, MERGE, Settings
from attnlab.records.errors import Invalid

_D = Settings()  # the defaults live there
_HELP = {
    "rounds": "Numbers of hash rounds.",
    "chunk_sizes": "Chunk lengths.",
    "bucket_factors": "Numbers of buckets, in units of the usual 2 * length / chunk size.",
    "windows": "Slots of its own bucket that a query sees; 0 = as many as a chunk has.",
    "centring": f"What is subtracted before hashing: {', '.join(CENTRING)}.",
    "merge": f"How a pair that several rounds show counts: {', '.join(MERGE)}.",
    "length": "Bytes that are attended over, and trained on at a time.",
    "num_layers": "Layers of the model; all are measured.",
    "num_heads": "Heads of a layer.",
    "head_dim": "Width of a head.",
    "train_steps": "Steps of training; 0 = seeded weights.",
    "top_k": "Keys of a query whose recall is measured.",
    "target_mass": "Share of the mass that is called enough.",
    "seed": "Of the model, its training and the rotations.",
    "data_files": "Files of text. Without them: the project's own sources.",
}


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    given = _flags()
    try:
        rest = given(argv)[1:]
        if given.help:
            print(f"{__doc__}\nflags:\n{given.get_help()}")
            return 0
        if rest:
            raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
        settings = Settings(**{name: _value(name, given[name].value) for name in _HELP})
        return hash_quality_run.run(settings, output_dir=Path(given.output_dir))
    except (flags.Error, Invalid) as error:
        print(f"hash_quality: {error}", file=sys.stderr)
        return 2


def _flags() -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    for name, text in _HELP.items():
        default = getattr(_D, name)
        if isinstance(default, tuple):
            listed = [f"{one:g}" if isinstance(one, float) else str(one) for one in default]
            flags.DEFINE_list(name, listed, text, flag_values=found)
        elif isinstance(default, float):
            flags.DEFINE_float(name, default, text, flag_values=found)
        else:
            flags.DEFINE_integer(name, default, text, flag_values=found)
    where = "Where the fresh folder of this run is made."
    flags.DEFINE_string("output_dir", "results", where, flag_values=found)
    flags.DEFINE_bool("help", False, "Show this text.", short_name="h", flag_values=found)
    return found


def _value(name: str, value: Any) -> Any:
    """A flag's value, lists of the type that the default has."""
    default = getattr(_D, name)
    if not isinstance(default, tuple):
        return value
    kind = type(default[0]) if default else str
    try:
        return tuple(kind(one) for one in value)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise Invalid(f"--{name}={','.join(value)}: give {what}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
