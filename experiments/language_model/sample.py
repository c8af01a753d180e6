"""Writes on after a prompt, with a model that `language_model` trained.

    python -m experiments.language_model.sample --run=FOLDER --model=lsh-4 --prompt="ROMEO:"
    python -m experiments.language_model.sample --run=FOLDER --temperature=0.7 --top_k=20

Each token is drawn after those before it, by the decoder with its caches. The same seed draws the
same text.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.core.tokens import UNK
from attnlab.mechanisms.attentions import require_model
from attnlab.runs import command_line
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag
from attnlab.runs.folder import Folder
from attnlab.studies.study import Cell, identity
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.decode import sample
from attnlab.training.loop import CHECKPOINTS
from attnlab.training.parallel import parallel_over
from attnlab.training.step import TrainState
from experiments.language_model import corpus as corpora
from experiments.language_model.__main__ import LanguageModels
from experiments.language_model.settings import Settings


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
    return command_line.run(argv, SampleFlags, run, doc=__doc__, keeps=False)


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
    length = flags.length or max(settings.lengths)
    axes = {"task": "text", "length": length, "model": flags.model}
    cell = Cell(axes, flags.trained_seed)
    where = kept.path / cell.folder
    if not (where / CHECKPOINTS).is_dir():
        others = sorted(path.parent.name for path in kept.path.glob(f"*/{CHECKPOINTS}"))
        raise Invalid(
            f"--model={flags.model}: {kept.path} has no checkpoints of {cell}; it has "
            f"{', '.join(others) or 'none'}"
        )
    corpus = corpora.read(settings)
    prompt = corpus.tokenizer.encode(flags.prompt)
    if UNK in prompt:
        raise Invalid(
            f"--prompt={flags.prompt!r}: has a character that the training text does not have"
        )
    if len(prompt) + flags.tokens > length:
        raise Invalid(
            f"--tokens={flags.tokens}: with the prompt's {len(prompt)} they are more than the "
            f"{length} that the model was trained on; give fewer"
        )
    trained = LanguageModels(settings, corpus)
    written = sample(
        trained.model(cell),
        variables_of(trained, cell, where),
        key=jax.random.key(flags.seed),
        prompt=jnp.asarray([prompt], jnp.int32),
        max_length=flags.tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
    )
    say(flags.prompt + corpus.tokenizer.decode(written.tokens[0].tolist()))
    return 0


def variables_of(trained: LanguageModels, cell: Cell, folder: Path) -> Any:
    """The variables of a cell's best checkpoint.

    Raises:
      Invalid: the checkpoints there are of another training, or there is none yet.
    """
    training = trained.training(cell)
    task, optimizer = training.task, training.optimizer.build(training.loop.steps)
    example = next(iter(task.batches))
    abstract = jax.eval_shape(lambda: TrainState.create(task.model, optimizer, example, cell.seed))
    whole = parallel_over("jit", jax.local_devices()[:1]).whole
    known = identity(trained, cell) | task.identity
    with Checkpoints(folder / CHECKPOINTS, known) as checkpoints:
        best = checkpoints.best_step
        if best is None:
            raise Invalid(f"{folder}: no checkpoint was written yet; train it further")
        shardings = jax.tree.map(lambda _: whole, abstract.kept())
        kept = checkpoints.restore(abstract.kept(), shardings, best)
    return abstract.replace(**kept.state).variables


if __name__ == "__main__":
    command_line.start(main)
