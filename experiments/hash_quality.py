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

import dataclasses
import signal
import sys
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import hash_quality_run
from attnlab.bench.case import Invalid
from attnlab.bench.hash_quality import CENTRING, MERGE, Settings

_D = Settings()  # the defaults live there


def _list(name: str, text: str) -> None:
    flags.DEFINE_list(name, [f"{one:g}" if isinstance(one, float) else str(one)
                             for one in getattr(_D, name)], text)  # fmt: skip


_list("rounds", "Numbers of hash rounds.")
_list("chunk_sizes", "Chunk lengths.")
_list("bucket_factors", "Numbers of buckets, in units of the usual 2 * length / chunk size.")
_list("windows", "Slots of its own bucket that a query sees; 0 = as many as a chunk has.")
_list("centring", f"What is subtracted before hashing: {', '.join(CENTRING)}.")
_list("merge", f"How a pair that several rounds show counts: {', '.join(MERGE)}.")
flags.DEFINE_integer("length", _D.length, "Bytes that are attended over, and trained on at a time.")
flags.DEFINE_integer("num_layers", _D.num_layers, "Layers of the model; all are measured.")
flags.DEFINE_integer("num_heads", _D.num_heads, "Heads of a layer.")
flags.DEFINE_integer("head_dim", _D.head_dim, "Width of a head.")
flags.DEFINE_integer("train_steps", _D.train_steps, "Steps of training; 0 = seeded weights.")
flags.DEFINE_integer("top_k", _D.top_k, "Keys of a query whose recall is measured.")
flags.DEFINE_float("target_mass", _D.target_mass, "Share of the mass that is called enough.")
flags.DEFINE_integer("seed", _D.seed, "Of the model, its training and the rotations.")
_list("data_files", "Files of text. Without them: the project's own sources.")
flags.DEFINE_string("output_dir", "results", "Where the fresh folder of this run is made.")
flags.DEFINE_bool("help", False, "Show this text.", short_name="h")


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    try:
        rest = flags.FLAGS(argv)[1:]
        if flags.FLAGS.help:
            print(f"{__doc__}\nflags:\n{flags.FLAGS.main_module_help()}")
            return 0
        if rest:
            raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
        settings = Settings(**{f.name: _value(f.name) for f in dataclasses.fields(Settings)})
        return hash_quality_run.run(settings, output_dir=Path(flags.FLAGS.output_dir))
    except (flags.Error, Invalid) as error:
        print(f"hash_quality: {error}", file=sys.stderr)
        return 2


def _value(name: str) -> Any:
    """A flag's value, lists of the type that the default has."""
    value: Any = flags.FLAGS[name].value
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
