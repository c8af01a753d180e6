"""The command line of `translate`."""

from pathlib import Path

from attnlab.runs import command_line
from experiments import translate
from experiments.translate import run
from experiments.translate.command import run_experiment
from experiments.translate.recipes import PRESETS
from experiments.translate.settings import DTYPES, Settings
from experiments.translate.systems import MODELS

PUBLISHED = Path(__file__).parent / "published"
_HELP = {
    "preset": f"Recipes: {', '.join(PRESETS)}. Default: dates without data, cpu with.",
    "models": f"Which to train: {', '.join(MODELS)}.",
    "data_files": "Training text: SOURCE,TARGET with aligned lines, or one TSV; .gz too.",
    "validation_files": "Likewise. Default: the last but one percent of the training text.",
    "test_files": "Likewise. Default: the last percent.",
    "tfds_name": "A prepared TFDS translation set instead, as wmt14_translate/de-en.",
    "data_dir": "The folder TFDS keeps it in.",
    "direction": "Of a TFDS set: SOURCE-TARGET language, as de-en.",
    "cache_dir": "Prepared files and tokenizers. Default: ~/.cache/attnlab.",
    "steps": "Of training; 0 = the recipe's, like the next ones.",
    "batch_size": "Sentence pairs in a step.",
    "learning_rate": "At its peak.",
    "dropout_rate": "Of every model; -1 = the recipe's.",
    "vocab_size": "Of the vocabularies: the joint one of a Transformer, each side's of the others.",
    "max_length": "Tokens of the longest pair to train on.",
    "validate_every": "Steps between validations, each with a checkpoint.",
    "checkpoint_every": "Steps between checkpoints; 0 = validate_every.",
    "log_every": "Steps between rows of the curve.",
    "beam_size": "Of the search; 1 = greedy.",
    "length_penalty": "Exponent of the search's length penalty; -1 = the preset's.",
    "parallel": "jit (the batch sharded over the devices) or pmap.",
    "devices": "How many; 0 = all. On a CPU as many as asked for are made.",
    "accumulate": "Parts of a batch, one after the other, to save memory.",
    "num_workers": "Processes that prepare the data; 0 = a thread. No number depends on it.",
    "pack": "Several pairs in each row of max_length tokens; the Transformer only.",
    "dtype": f"Of the computation: {', '.join(DTYPES)}.",
    "seed": "Of parameters, dropout and the order of the data.",
    "draw_file": "A TSV of pairs to draw the alignments of. Default: some of the test split.",
    "tensorboard": "Also write TensorBoard's files (extra tensorboard).",
}


def main(argv: list[str]) -> int:
    """Parses and runs; a bad flag ends in one line and status 2."""

    def start(settings: Settings, output_dir: Path, resume: str) -> int:
        return run.run(
            settings, output_dir, resume=resume, published=PUBLISHED, say=command_line.say
        )

    return run_experiment(
        "translate", argv, doc=translate.__doc__, helps=_HELP, defaults=Settings(), run=start
    )


if __name__ == "__main__":
    command_line.start(main)
