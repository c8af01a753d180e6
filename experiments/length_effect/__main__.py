"""The command line of `length_effect`."""

from pathlib import Path

from attnlab.runs import command_line
from experiments import length_effect
from experiments.length_effect import run as length_effect
from experiments.length_effect.run import TASKS, Settings
from experiments.translate.command import run_experiment

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
        "length_effect",
        argv,
        doc=length_effect.__doc__,
        helps=_HELP,
        defaults=Settings(),
        run=start,
    )


if __name__ == "__main__":
    command_line.start(main)
