"""Memory and speed of attention mechanisms over sequence length, on real text.

    python -m experiments.compare_lengths
    python -m experiments.compare_lengths --mechanisms=multi_head,lsh --lengths=1k,4k,16k
    python -m experiments.compare_lengths --mechanisms=multi_head:dense,additive,lsh
    python -m experiments.compare_lengths --implementation=dense,blockwise --mechanisms=concat
    python -m experiments.compare_lengths --resume=results/compare_lengths-20261120-101500
    python -m experiments.compare_lengths --target=v5e,h100 --dtype=bfloat16
    python -m experiments.compare_lengths --target=v5e:2x4 --shard=sequence --mechanisms=multi_head
    python -m experiments.compare_lengths --target=v5e-8 --shard=batch --batch=8 --program=bert

Each mechanism is the same jitted Flax module, with as many heads and the same projections, run on
the bytes of a text, forward and forward + backward, length by length; two of them also as in the
textbook (dense), until that no longer fits or would be too slow. A fresh folder gets results.jsonl
(every repetition), results.csv, report.md and two figures, memory and time, as SVG and PNG; the
report also sets LSH beside published tables. Ctrl-C keeps what is done and still writes the report.
The defaults finish within 5 minutes and 8 GiB on two quiet cores.

With --target nothing runs: each program is compiled for accelerators that are not there, and the
report says what memory it would need on them, up to which length it fits, and no times. --program
compiles a whole training step instead (Adam, float32 parameters).
"""

import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import compare, targets
from attnlab.bench.case import PASSES
from attnlab.bench.folder import Folder
from attnlab.bench.mechanisms import IMPLEMENTATIONS, NAMES
from attnlab.bench.settings import (
    AUTO,
    DTYPES,
    FOR_PROGRAMS,
    FOR_TARGETS,
    FOR_WAYS,
    IN_MODELS,
    PARALLEL,
    PLAIN,
    PROGRAMS,
    Settings,
)
from attnlab.bench.sharding import SHARDS
from attnlab.records.errors import Invalid

PUBLISHED = Path(__file__).parent / "published"
_D = Settings()  # the defaults live there


def _listed(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


_ways = f"{AUTO} (the fastest exact one here), {', '.join(IMPLEMENTATIONS)}"

flags.DEFINE_list(
    "mechanisms",
    list(_D.mechanisms),
    f"Which to compare: {', '.join(NAMES)}. NAME:IMPLEMENTATION computes one of them so.",
)
flags.DEFINE_list(
    "lengths", list(map(str, _D.lengths)), "Sequence lengths, in tokens; 4k is 4096, 1m is 1024k."
)
flags.DEFINE_integer("batch", _D.batch, "Sequences in all; must divide over the devices.")
flags.DEFINE_integer("num_heads", _D.num_heads, "Heads; the model width is num_heads * head_dim.")
flags.DEFINE_integer("head_dim", _D.head_dim, "Width of one head.")
flags.DEFINE_enum("dtype", _D.dtype, DTYPES, "Of parameters and activations.")
flags.DEFINE_bool("causal", _D.causal, "Whether a token sees only itself and earlier ones.")
flags.DEFINE_list("passes", list(_D.passes), f"Which passes: {', '.join(PASSES)}.")
flags.DEFINE_list(
    "implementation",
    list(_D.implementation),
    f"How exact attention is computed; a line in the figures for each: {_ways}. "
    f'lsh has its own way, and "pallas". Without --mechanisms: {_listed(PLAIN)}.',
)
flags.DEFINE_bool("ops_only", _D.ops_only, "Compare the bare functions, without modules.")
flags.DEFINE_enum("parallel", _D.parallel, PARALLEL, "How the batch is split over devices.")
flags.DEFINE_integer(
    "devices",
    _D.devices,
    "Devices to split the batch over. Without it: all local ones for pmap, one for jit. "
    "On a CPU as many as asked for are made.",
)
flags.DEFINE_integer("repeats", _D.repeats, "Timed samples of each case.")
flags.DEFINE_float(
    "case_seconds", _D.case_seconds, "A case that runs longer is stopped, and a row."
)
flags.DEFINE_float(
    "case_gib",
    _D.case_gib,
    "A case that needs more of a CPU's memory is not run, and a row. Accelerators use all theirs.",
)
flags.DEFINE_integer("window", _D.window, "Keys that window sees to the left (and right).")
flags.DEFINE_integer("num_hashes", _D.num_hashes, "Hash rounds of lsh.")
flags.DEFINE_integer("chunk_size", _D.chunk_size, "Chunk length of lsh.")
flags.DEFINE_string(
    "input", _D.input, "A file whose bytes are the input. Without it: the project's own sources."
)
flags.DEFINE_list(
    "target",
    list(_D.target),
    f"Accelerators to compile for without having them: {', '.join(targets.known())}; slices as "
    f"v5e:4x4 or v5e-16. Without --lengths: {_listed(FOR_TARGETS['lengths'])}.",
)
flags.DEFINE_enum("shard", _D.shard, SHARDS, "What is split over the devices of a slice.")
flags.DEFINE_enum(
    "program",
    _D.program,
    PROGRAMS,
    "What is compiled for a target: attention, or a training step of a model whose self-attention "
    f"is {', '.join(IN_MODELS)}. Without --lengths: {_listed(FOR_PROGRAMS['lengths'])}; without "
    f"--mechanisms: {_listed(FOR_PROGRAMS['mechanisms'])}.",
)
flags.DEFINE_integer("num_layers", _D.num_layers, "Layers of that model, in each of its stacks.")
flags.DEFINE_integer("vocab_size", _D.vocab_size, "Words of that model.")
flags.DEFINE_string("output_dir", "results", "Where the fresh folder of this run is made.")
flags.DEFINE_string(
    "resume",
    None,
    "The folder of an earlier run: does only what is missing or failed there, with its flags.",
)
flags.DEFINE_bool("help", False, "Show this text.", short_name="h")


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    try:
        rest = flags.FLAGS(argv)[1:]
        if flags.FLAGS.help:
            print(_help())
            return 0
        if rest:
            raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
        settings, resume = _settings()
        return compare.compare(
            settings,
            output_dir=Path(flags.FLAGS.output_dir),
            published_dir=PUBLISHED,
            resume=resume,
        )
    except (flags.Error, Invalid) as error:
        print(f"compare_lengths: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before there was anything to keep
        return compare.INTERRUPTED


def _settings() -> tuple[Settings, Path | None]:
    ours = [flags.FLAGS[field.name] for field in dataclasses.fields(Settings)]
    if flags.FLAGS["target"].present and not flags.FLAGS.target:
        raise Invalid("--target= is empty; name accelerators, such as v5e,h100, or leave it out")
    for name in ("output_dir", "resume"):
        if flags.FLAGS[name].value == "":
            raise Invalid(f"--{name}= is empty; give a folder")
    if flags.FLAGS.resume is None:
        values = {flag.name: _value(flag) for flag in ours}
        others = (("target", FOR_TARGETS), ("implementation", FOR_WAYS), ("program", FOR_PROGRAMS))
        for flag, defaults in others:
            if flags.FLAGS[flag].present:
                values |= {k: v for k, v in defaults.items() if not flags.FLAGS[k].present}
        return Settings.from_json(values), None
    path = Path(flags.FLAGS.resume)
    if flags.FLAGS["output_dir"].present:
        raise Invalid("--output_dir and --resume exclude each other; drop one")
    stored = Folder.open(path).settings()
    compare.check_resumed({flag.name: _value(flag) for flag in ours if flag.present}, stored, path)
    try:
        return Settings.from_json(stored), path
    except Invalid as error:
        raise Invalid(f"--resume={path}: {error}") from None


def _help() -> str:
    ours = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    lines = [__doc__ or "", "Flags:"]
    for flag in ours:
        default = "" if flag.default is None else flag.serialize().partition("=")[2]
        switch = f"--{flag.name}={default}"
        if flag.boolean:
            switch = f"--[no]{flag.name} ({'on' if flag.default else 'off'})"
        lines += [f"  {switch}", textwrap.indent(textwrap.fill(str(flag.help), 92), " " * 6)]
    return "\n".join(lines)


def _value(flag: flags.Flag) -> Any:
    value: Any = flag.value
    if flag.name == "input" and value:
        return str(Path(value).absolute())  # a resumed run may be started elsewhere
    if flag.name != "lengths":
        return value
    try:
        return [_tokens(n) for n in value]
    except ValueError:
        what = "give whole numbers, such as 3000, or 4k for 4096"
        raise Invalid(f"--lengths={','.join(value)}: {what}") from None


def _tokens(text: str) -> int:
    """4096 of "4096" and of "4k"."""
    unit = {"k": 2**10, "m": 2**20}.get(text[-1:].lower())
    return int(text) if unit is None else int(text[:-1]) * unit


if __name__ == "__main__":
    sys.exit(main(sys.argv))
