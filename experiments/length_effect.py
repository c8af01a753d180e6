"""A fixed vector against attention as the source grows: Bahdanau 2014's Figure 2 on random words.

    python -m experiments.length_effect
    python -m experiments.length_effect --task=reversal --hidden_features=256
    python -m experiments.length_effect --max_length=20 --lengths=5,10,20,40 --steps=1500
    python -m experiments.length_effect --resume=results/length_effect-20261120-101500

RNNencdec, which squeezes the source into one vector, and RNNsearch, which looks at it again for
every symbol, learn to copy words of random symbols, with the same sizes and the same training. Then
each writes words that it has not seen, length by length, also longer ones than any in training. A
fresh folder gets results.jsonl, report.md, one figure as SVG and PNG, and of each model checkpoints
and metrics.jsonl. SIGTERM and Ctrl-C save; --resume=FOLDER goes on. The defaults take nine minutes
on two busy cores.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.records.errors import Invalid
from attnlab.training.meter import Diverged
from attnlab.translation import length_effect
from attnlab.translation.length_effect import TASKS, Settings
from attnlab.translation.run_folder import saved_settings

_HELP = {
    "task": f"What is learnt: {', '.join(TASKS)}.",
    "num_symbols": "How many symbols words are made of.",
    "max_length": "Symbols of the longest word in training.",
    "lengths": "Symbols of the words that are tested.",
    "examples": "Words of each length.",
    "embed_features": "Width of the embeddings.",
    "hidden_features": "Width of a state, and so of the fixed vector.",
    "steps": "Of training.",
    "batch_size": "Words in a step.",
    "learning_rate": "At its peak.",
    "validate_every": "Steps between validations, each with a checkpoint.",
    "seed": "Of parameters and words.",
}


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    try:
        first = _flags(Settings())
        first(argv, known_only=True)
        resume = first.resume
        given = _flags(saved_settings(resume, Settings) if resume else Settings())
        rest = given(argv)[1:]
        if given.help:
            print(f"{__doc__}\nflags:\n{given.get_help()}")
            return 0
        if rest:
            raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
        settings = Settings(**{name: _value(name, given[name].value) for name in _HELP})
        return length_effect.run(settings, Path(given.output_dir), resume=resume, say=_say)
    except (flags.Error, Invalid) as error:
        print(f"length_effect: {error}", file=sys.stderr)
        return 2
    except Diverged as error:
        print(f"length_effect: {error}; try a smaller --learning_rate", file=sys.stderr)
        return 1


def _say(line: str) -> None:
    print(line, flush=True)


def _value(name: str, value: Any) -> Any:
    """A flag's value; of --lengths, whole numbers."""
    if not isinstance(value, list):
        return value
    try:
        return tuple(map(int, value))
    except ValueError:
        raise Invalid(f"--{name}={','.join(value)}: give whole numbers") from None


def _flags(defaults: Settings) -> flags.FlagValues:
    """The flags; of this experiment alone, so that others may use the same names."""
    found = flags.FlagValues()
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for field in dataclasses.fields(Settings):
        default = getattr(defaults, field.name)
        if isinstance(default, tuple):
            listed = [str(one) for one in default]
            flags.DEFINE_list(field.name, listed, _HELP[field.name], flag_values=found)
        else:
            make: Any = define.get(type(default), flags.DEFINE_string)
            make(field.name, default, _HELP[field.name], flag_values=found)
    where = "Where the fresh folder of this run is made."
    flags.DEFINE_string("output_dir", "results", where, flag_values=found)
    flags.DEFINE_string("resume", "", "A folder of this job, to go on in it.", flag_values=found)
    flags.DEFINE_bool("help", False, "Show this text.", short_name="h", flag_values=found)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv))
