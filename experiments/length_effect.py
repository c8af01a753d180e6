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

from pathlib import Path

from attnlab.records import command_line
from attnlab.translation import length_effect
from attnlab.translation.command import run_experiment
from attnlab.translation.length_effect import TASKS, Settings

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

    def start(settings: Settings, output_dir: Path, resume: str) -> int:
        return length_effect.run(settings, output_dir, resume=resume, say=command_line.say)

    return run_experiment(
        "length_effect", argv, doc=__doc__, helps=_HELP, defaults=Settings(), run=start
    )


if __name__ == "__main__":
    command_line.start(main)
