"""The study `duplication`: attentions × seeds, evaluated with every number of hash rounds."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.tasks import ENDLESS
from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.positions import sinusoid_init
from attnlab.runs import command_line
from attnlab.studies import command
from attnlab.studies.study import Cell, Drawn, Evaluation, Row, Study, Training
from attnlab.training.loop import Task, Trained
from attnlab.training.objective import TokenCrossEntropy, token_sums
from experiments import duplication
from experiments.duplication import attention, report
from experiments.duplication.attention import EXACT, Hashing, rounds_of
from experiments.duplication.settings import DRAW, Settings, length_of

TRAINING, VALIDATION, TEST = range(3)  # added to the seed of the words
VALIDATION_BATCHES = 4
VARIED = "lsh-4"  # what the grid trains with each of the hashings
# Times the steps for what learns later, where no paper says how many: one round shows a query
# little of what it needs, and to one that sees itself nothing is as near.
LONGER = {"lsh-1": 2, "plain": 3}
# How the table of learned positions begins.
POSITIONS = {"sinusoid": sinusoid_init, "normal": nn.initializers.normal(1.0)}


class Duplication(Study[Settings, Drawn]):
    """One layer that writes a word again, with shared queries and keys."""

    flags = Settings
    title = "Reformer, Table 2: what hashing costs on the duplication task"
    axes = {"word": "words", "attention": "models"}  # and "hashing" and "positions", see `cells`
    scores = {"accuracy": ".1%", "nll": ".4f"}
    shown = (
        "num_symbols", "chunk_size", "logit_scale", "bucket_factor", "bucket_mask", "merge",
        "steps", "batch_size", "optimizer", "learning_rate", "examples",
    )  # fmt: skip
    note = (
        "`0w0w`: accuracy in percent, of the second w alone. One layer, width 256, 4 heads of 64,"
        " queries and keys one projection, learned positions that begin as sinusoids. Borders of"
        " chunks decide what is visible, as in the paper, and each round looks back one chunk."
        " Rotations are drawn anew in every step, and in evaluation for every"
        f" {DRAW} of the examples. *shared*: {EXACT['shared']}; LSH attention with one bucket."
        f" *lsh-1* is trained {LONGER['lsh-1']} times as long, *plain* {LONGER['plain']} times,"
        " but with the papers' presets."
    )

    @staticmethod
    def open(settings: Settings) -> Drawn:
        return Drawn("duplication")

    def cells(self) -> list[Cell]:
        """The shortest words' table, their grid seed by seed, then the tables of longer words.

        So a run that is cut short has what its conclusion rests on.
        """
        settings = self.settings
        base, (shortest, *longer) = settings.hashing(), sorted(settings.words)

        def cell(word: int, name: str, seed: int, hashing: Hashing = base,
                 positions: str = "sinusoid") -> Cell:  # fmt: skip
            axes = {"word": word, "attention": name, "hashing": str(hashing)}
            return Cell({**axes, "positions": positions}, seed)

        def table(word: int) -> list[Cell]:
            return [cell(word, name, seed) for seed in settings.seeds for name in settings.models]

        cells = table(shortest)
        for seed in settings.seeds if settings.grid else ():
            scaled, *varied = base.variations()
            drawn = [cell(shortest, x, seed, positions="normal") for x in ("shared", VARIED)]
            cells += [*drawn, cell(shortest, "shared", seed, scaled)]
            cells += [cell(shortest, VARIED, seed, hashing) for hashing in (scaled, *varied)]
            cells += [cell(shortest, "plain", seed, hashing) for hashing in (scaled, base)]
        return [*cells, *itertools.chain(*map(table, longer))]

    def training(self, cell: Cell) -> Training:
        settings = self.settings

        def examples(part: int) -> grain.IterDataset:
            return batches(
                cell["word"], settings.num_symbols, cell.seed, part, batch_size=settings.batch_size
            )

        task = Task(
            build(settings, cell["word"], cell["attention"], _hashing(cell), cell["positions"]),
            TokenCrossEntropy(),
            examples(TRAINING),
            lambda: itertools.islice(examples(VALIDATION), VALIDATION_BATCHES),
            streams=("hash",),
        )
        is_published = settings.preset in ("paper", "code")
        longer = 1 if is_published else LONGER.get(cell["attention"], 1)
        steps = longer * settings.steps
        loop = settings.loop(seed=cell.seed, steps=steps)
        return Training(task, settings.optimizer_for(steps), loop)

    def evaluations(self, cell: Cell) -> list[str]:
        """Attention over all pairs in each sense, and every number of rounds.

        A model that was not trained to hash is evaluated with every hashing of the grid too.
        """
        rounds = [f"lsh-{n}" for n in self.settings.eval_rounds]
        hashings = []
        if rounds_of(cell["attention"]) is None and cell["word"] == min(self.settings.words):
            hashings = [x for x in self.settings.hashings() if x != _hashing(cell)]
        return [*EXACT, *rounds, *(f"{name}: {x}" for x in hashings for name in rounds)]

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        settings, word = self.settings, cell["word"]
        examples = batches(word, settings.num_symbols, cell.seed, TEST, batch_size=DRAW)
        test = list(itertools.islice(examples, settings.examples // DRAW))
        for evaluated in self.evaluations(cell):
            name, _, other = evaluated.partition(": ")
            hashing = Hashing.parse(other) if other else _hashing(cell)
            model = build(settings, word, name, hashing)
            sums = [
                jax.device_get(_sums(model, trained.variables, batch, jax.random.key(i)))
                for i, batch in enumerate(test)
            ]
            symbols = word * settings.examples
            scores = {
                "accuracy": sum(float(x["correct"]) for x in sums) / symbols,
                "nll": sum(float(x["nll"]) for x in sums) / symbols,
            }
            yield Evaluation(scores, evaluated)

    def answer(self, rows: Sequence[Row]) -> str:
        return report.answer(rows, self.settings)

    def results(self, rows: Sequence[Row]) -> str:
        return report.results(rows, self.settings)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"rounds": report.figure(rows, self.settings)}

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        yield from report.sections(rows, self.settings)
        yield "## Trainings"
        yield self.trainings(rows)

    def line(self, row: Row) -> str:
        return f"{row.evaluated} {100 * row.scores['accuracy']:.1f} %"


def _hashing(cell: Cell) -> Hashing:
    return Hashing.parse(cell["hashing"])


def build(
    settings: Settings, word: int, name: str, hashing: Hashing, positions: str = "sinusoid"
) -> TransformerLM:
    """The model, as far as published: 1 layer, width 256, 4 heads of 64, nothing shared.

    395,264 parameters and 256 for each position; the released model has 128 more, the biases of its
    softmax. None depends on the attention.

    Args:
      settings: settings of the run, with the number of symbols and the size of a chunk.
      word: number of symbols in a word.
      name: name of the attention.
      hashing: choices that the literature leaves open.
      positions: name in `POSITIONS` of how the table of learned positions begins.
    """
    length = length_of(word)
    config = TransformerConfig(
        max(128, settings.num_symbols + 1),  # the released model has 128, and 126 symbols
        num_layers=1,
        width=256,
        hidden=256,
        num_heads=4,
        share_embeddings=False,
        positions="learned",
        position_init=POSITIONS[positions],
        max_length=length,
        pre_norm=True,
        dropout_rate=0.0,
    )
    options = attention.options(name, hashing, length=length, chunk_size=settings.chunk_size)
    return TransformerLM(config, config.attention(**options))


def batches(
    word: int, num_symbols: int, seed: int, part: int, *, batch_size: int
) -> grain.IterDataset:
    """Endless batches of `0w0w`; an example depends on the seed, the part and its index alone.

    `part` is TRAINING, VALIDATION or TEST, which have other words.

    Returns:
      A dataset of {"tokens" [B, L] int32, "weights" [B, L] float32}: 1 for the second word.
    """
    weights = np.zeros(length_of(word), np.float32)
    weights[word + 2 :] = 1

    def draw(_: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        half = np.zeros(word + 1, np.int32)
        half[1:] = rng.integers(1, num_symbols + 1, word)
        return {"tokens": np.concatenate([half, half]), "weights": weights}

    order = grain.MapDataset.range(ENDLESS).seed(3 * seed + part).random_map(draw)
    return order.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads=0))


@functools.partial(jax.jit, static_argnums=0)  # compiled once for all models of a shape
def _sums(
    model: TransformerLM, variables: Any, batch: dict[str, Any], key: jax.Array
) -> dict[str, jax.Array]:
    """The sums of `token_sums` over the second half."""
    tokens = jnp.asarray(batch["tokens"])
    logits: Any = model.apply(variables, tokens, deterministic=True, rngs={"hash": key})
    return token_sums(logits, tokens, weights=batch["weights"])


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, Duplication, duplication)


if __name__ == "__main__":
    command_line.start(main)
