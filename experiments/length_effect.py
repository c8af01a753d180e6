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

import sys
from pathlib import Path

from absl import flags

from attnlab.records import command_line
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
    """Parses and runs; a bad flag ends in one line and status 2."""
    try:
        resume = command_line.resumed(argv)
        defaults = saved_settings(resume, Settings) if resume else Settings()
        given = command_line.flags_of(defaults, _HELP, resumes=True)
        if not command_line.parse(given, argv, __doc__):
            return 0
        settings = command_line.settings_of(given, Settings())
        where = Path(given.output_dir)
        return length_effect.run(settings, where, resume=resume, say=command_line.say)
    except (flags.Error, Invalid) as error:
        return command_line.refuse("length_effect", error)
    except Diverged as error:
        print(f"length_effect: {error}; try a smaller --learning_rate", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
