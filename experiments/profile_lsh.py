"""Where the time of LSH attention goes: hash, sort, gather, attend, merge, over sequence length.

    python -m experiments.profile_lsh
    python -m experiments.profile_lsh --lengths=16384 --num_hashes=8 --passes=forward
    python -m experiments.profile_lsh --chunk_size=32 --num_buckets=512 --lengths=8192,16384

Traces the compiled program of `lsh_attention`, hashing included, on the bytes of a text, and reads
the stages' shares from the trace; the time without the profiler stands beside them. A fresh folder
gets results.jsonl, report.md and a figure of the shares as SVG and PNG. Ctrl-C keeps what is done
and still writes the report. The defaults take two minutes on two cores.
"""

import dataclasses
import functools
from pathlib import Path

from absl import flags

from attnlab.bench import profile_run
from attnlab.bench.case import PASSES
from attnlab.bench.settings import DTYPES, Settings
from attnlab.records import command_line
from attnlab.records.errors import Invalid
from attnlab.records.interrupts import interruptible

DEFAULTS = Settings(
    mechanisms=("lsh",), ops_only=True, lengths=(2048, 4096, 8192, 16384, 32768), num_heads=8
)


def main(argv: list[str]) -> int:
    """Parses and profiles; a bad flag ends in one line and status 2."""
    given = _flags()
    try:
        if not command_line.parse(given, argv, __doc__):
            return 0
        with interruptible():
            return profile_run.run(
                _settings(given), num_buckets=given.num_buckets, output_dir=Path(given.output_dir)
            )
    except (flags.Error, ValueError) as error:
        return command_line.refuse("profile_lsh", error)
    except KeyboardInterrupt:  # before there was anything to keep
        return profile_run.INTERRUPTED


def _flags() -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    d = DEFAULTS
    number = functools.partial(flags.DEFINE_integer, flag_values=found)
    names = functools.partial(flags.DEFINE_list, flag_values=found)
    text = functools.partial(flags.DEFINE_string, flag_values=found)
    switch = functools.partial(flags.DEFINE_bool, flag_values=found)
    names("lengths", list(map(str, d.lengths)), "Sequence lengths, in tokens.")
    number("batch", d.batch, "Sequences.")
    number("num_heads", d.num_heads, "Heads.")
    number("head_dim", d.head_dim, "Width of one head.")
    number("num_hashes", d.num_hashes, "Hash rounds.")
    number("chunk_size", d.chunk_size, "Chunk length, in slots of sorted order.")
    number(
        "num_buckets",
        None,
        "Buckets of a round, an even number. Without it: the library's own choice for each "
        "length, about 2 * length / chunk_size.",
    )
    flags.DEFINE_enum("dtype", d.dtype, DTYPES, "Of the arrays.", flag_values=found)
    switch("causal", d.causal, "Whether a token sees only itself and earlier ones.")
    names("passes", list(d.passes), f"Which passes: {', '.join(PASSES)}.")
    number("repeats", d.repeats, "Calls timed, and again as many under the profiler.")
    text("input", d.input, "A file whose bytes are the input. Without it: the project's sources.")
    return command_line.add_common(found)


def _settings(given: flags.FlagValues) -> Settings:
    names = [field.name for field in dataclasses.fields(Settings) if field.name in given]
    values = {name: given[name].value for name in names}
    try:
        values["lengths"] = [int(n) for n in given.lengths]
    except ValueError:
        raise Invalid(f"--lengths={','.join(given.lengths)}: give whole numbers") from None
    return Settings.from_json(DEFAULTS.as_json() | values)


if __name__ == "__main__":
    command_line.start(main)
