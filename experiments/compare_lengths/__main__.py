"""The command line of `compare_lengths`."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.bench import targets
from attnlab.bench.case import PASSES
from attnlab.bench.folder import Folder
from attnlab.bench.mechanisms import IMPLEMENTATIONS, NAMES
from attnlab.bench.sharding import SHARDS
from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from experiments import compare_lengths
from experiments.compare_lengths import run as compare
from experiments.compare_lengths.settings import (
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

PUBLISHED = Path(__file__).parent / "published"
_D = Settings()  # the defaults live there


def _listed(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


_ways = f"{AUTO} (the fastest exact one here), {', '.join(IMPLEMENTATIONS)}"


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    try:
        given = _flags()
        if not command_line.parse(given, argv, compare_lengths.__doc__):
            return 0
        settings, resume = _settings(given)
        return compare.compare(
            settings,
            output_dir=Path(given.output_dir),
            published_dir=PUBLISHED,
            resume=resume,
        )
    except (flags.Error, Invalid) as error:
        return command_line.refuse("compare_lengths", error)
    except KeyboardInterrupt:  # before there was anything to keep
        return compare.INTERRUPTED


def _flags() -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    number = functools.partial(flags.DEFINE_integer, flag_values=found)
    decimal = functools.partial(flags.DEFINE_float, flag_values=found)
    names = functools.partial(flags.DEFINE_list, flag_values=found)
    choice = functools.partial(flags.DEFINE_enum, flag_values=found)
    text = functools.partial(flags.DEFINE_string, flag_values=found)
    switch = functools.partial(flags.DEFINE_bool, flag_values=found)
    names(
        "mechanisms",
        list(_D.mechanisms),
        f"Which to compare: {', '.join(NAMES)}. NAME:IMPLEMENTATION computes one of them so.",
    )
    names(
        "lengths",
        list(map(str, _D.lengths)),
        "Sequence lengths, in tokens; 4k is 4096, 1m is 1024k.",
    )
    number("batch", _D.batch, "Sequences in all; must divide over the devices.")
    number("num_heads", _D.num_heads, "Heads; the model width is num_heads * head_dim.")
    number("head_dim", _D.head_dim, "Width of one head.")
    choice("dtype", _D.dtype, DTYPES, "Of parameters and activations.")
    switch("causal", _D.causal, "Whether a token sees only itself and earlier ones.")
    names("passes", list(_D.passes), f"Which passes: {', '.join(PASSES)}.")
    names(
        "implementation",
        list(_D.implementation),
        f"How exact attention is computed; a line in the figures for each: {_ways}. "
        f'lsh has its own way, and "pallas". Without --mechanisms: {_listed(PLAIN)}.',
    )
    switch("ops_only", _D.ops_only, "Compare the bare functions, without modules.")
    choice("parallel", _D.parallel, PARALLEL, "How the batch is split over devices.")
    number(
        "devices",
        _D.devices,
        "Devices to split the batch over. Without it: all local ones for pmap, one for jit. "
        "On a CPU as many as asked for are made.",
    )
    number("repeats", _D.repeats, "Timed samples of each case.")
    decimal("case_seconds", _D.case_seconds, "A case that runs longer is stopped, and a row.")
    decimal(
        "case_gib",
        _D.case_gib,
        "A case that needs more of a CPU's memory is not run, and a row. Accelerators use all "
        "theirs.",
    )
    number("window", _D.window, "Keys that window sees to the left (and right).")
    number("num_hashes", _D.num_hashes, "Hash rounds of lsh.")
    number("chunk_size", _D.chunk_size, "Chunk length of lsh.")
    text(
        "input",
        _D.input,
        "A file whose bytes are the input. Without it: the project's own sources.",
    )
    names(
        "target",
        list(_D.target),
        f"Accelerators to compile for without having them: {', '.join(targets.known())}; slices as "
        f"v5e:4x4 or v5e-16. Without --lengths: {_listed(FOR_TARGETS['lengths'])}.",
    )
    choice("shard", _D.shard, SHARDS, "What is split over the devices of a slice.")
    choice(
        "program",
        _D.program,
        PROGRAMS,
        "What is compiled for a target: attention, or a training step of a model whose "
        f"self-attention is {', '.join(IN_MODELS)}. Without --lengths: "
        f"{_listed(FOR_PROGRAMS['lengths'])}; without --mechanisms: "
        f"{_listed(FOR_PROGRAMS['mechanisms'])}.",
    )
    number("num_layers", _D.num_layers, "Layers of that model, in each of its stacks.")
    number("vocab_size", _D.vocab_size, "Words of that model.")
    text(
        "resume",
        None,
        "The folder of an earlier run: does only what is missing or failed there, with its flags.",
    )
    return command_line.add_common(found)


def _settings(given: flags.FlagValues) -> tuple[Settings, Path | None]:
    ours = [given[field.name] for field in dataclasses.fields(Settings)]
    if given["target"].present and not given.target:
        raise Invalid("--target= is empty; name accelerators, such as v5e,h100, or leave it out")
    if given.resume is None:
        values = {flag.name: _value(flag) for flag in ours}
        others = (("target", FOR_TARGETS), ("implementation", FOR_WAYS), ("program", FOR_PROGRAMS))
        for flag, defaults in others:
            if given[flag].present:
                values |= {k: v for k, v in defaults.items() if not given[k].present}
        settings = Settings.from_json(values)
        settings.check_used([flag.name for flag in ours if flag.present])
        return settings, None
    path = Path(given.resume)
    stored = Folder.open(path).settings()
    compare.check_resumed({flag.name: _value(flag) for flag in ours if flag.present}, stored, path)
    try:
        return Settings.from_json(stored), path
    except Invalid as error:
        raise Invalid(f"--resume={path}: {error}") from None


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
    command_line.start(main)
