"""Writes on after a prompt, with a model that `language_model` trained.

    python -m experiments.language_model.sample --run=FOLDER --model=lsh-4 --prompt="ROMEO:"
    python -m experiments.language_model.sample --run=FOLDER --temperature=0.7 --top_k=20

Each token is drawn after those before it, by the decoder with its caches. The same seed draws the
same text.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from attnlab.attentions import require_model
from attnlab.runs import command_line
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag
from attnlab.runs.folder import Folder
from attnlab.tokens import UNK
from attnlab.training.decode import sample
from attnlab.training.loop import CHECKPOINTS
from experiments.language_model import corpus as corpora
from experiments.language_model.settings import Settings
from experiments.language_model.training import Cell, build_of, trained_variables


@dataclasses.dataclass(frozen=True)
class SampleFlags(Flags):
    """The flags of `sample`."""

    run: str = flag("", "The folder of a run of language_model.")
    model: str = flag("lsh-4", "Model to write with, one of the run's.")
    length: int | None = flag(
        None, "Tokens in the windows it was trained on. Without it: the run's longest.", least=2
    )
    trained_seed: int = seed_flag("Seed that it was trained with.")
    prompt: str = flag("\n", "Text to go on after.")
    tokens: int = flag(300, "Number of tokens to write.", least=1)
    temperature: float = flag(1.0, "Spread of the draw; towards 0 it is the likeliest.", above=0)
    top_k: int | None = flag(None, "Likeliest tokens to draw from. Without it: all.", least=1)
    top_p: float | None = flag(
        None, "Share of the probability to draw from. Without it: all.", above=0, most=1
    )
    seed: int = seed_flag("Seed of the draw.")


def main(argv: list[str]) -> int:
    """Parses the flags and writes."""
    return command_line.run(argv, SampleFlags, run, doc=__doc__, resumes=False)


def run(flags: SampleFlags, folder: Folder) -> int:
    """Prints the prompt and what the model writes after it.

    Raises:
      Invalid: there is no such run or model in it, its text is gone or is another one, or prompt
        and text are longer than the model's windows.
    """
    del folder  # nothing is kept
    if not flags.run:
        raise Invalid("--run= is empty; give the folder of a run of language_model")
    kept = Folder.kept("language_model", Path(flags.run), flag="run")
    settings = Settings.from_json(kept.settings)
    kept.claim()  # to read checkpoints is to clear away one that is half written
    require_model(f"--model={flags.model}", flags.model, settings.num_layers)
    cell = Cell(flags.model, flags.length or max(settings.lengths), flags.trained_seed)
    where = cell.folder(kept.path)
    if not (where / CHECKPOINTS).is_dir():
        found = sorted(path.parent.name for path in kept.path.glob(f"*/{CHECKPOINTS}"))
        raise Invalid(
            f"--model={flags.model}: {kept.path} has no checkpoints of {cell}; it has "
            f"{', '.join(found) or 'none'}"
        )
    corpus = corpora.read(settings)
    prompt = corpus.tokenizer.encode(flags.prompt)
    if UNK in prompt:
        raise Invalid(
            f"--prompt={flags.prompt!r}: has a character that the training text does not have"
        )
    if len(prompt) + flags.tokens > cell.length:
        raise Invalid(
            f"--tokens={flags.tokens}: with the prompt's {len(prompt)} they are more than the "
            f"{cell.length} that the model was trained on; give fewer"
        )
    written = sample(
        build_of(cell, settings, corpus),
        trained_variables(cell, settings, corpus, where),
        key=jax.random.key(flags.seed),
        prompt=jnp.asarray([prompt], jnp.int32),
        max_length=flags.tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
    )
    say(flags.prompt + corpus.tokenizer.decode(written.tokens[0].tolist()))
    return 0


if __name__ == "__main__":
    command_line.start(main)
