"""The training of one model, and its result read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.parts import WHOLE, Part
from attnlab.data.windows import consecutive_windows, random_windows
from attnlab.models.activations import shared_projections
from attnlab.models.transformer import LanguageModel
from attnlab.ops.lsh import hash_buckets, hash_quality, make_rotations
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.positions import rotary
from attnlab.runs.errors import Invalid
from attnlab.tokens import NUM_SPECIAL
from attnlab.training.bits import BitsPerByte
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.loop import CHECKPOINTS, Task
from attnlab.training.parallel import parallel_over
from attnlab.training.step import TrainState
from experiments.language_model.corpus import Corpus
from experiments.language_model.models import build, hashing_layers, rounds_of, streams
from experiments.language_model.settings import Settings

__all__ = ["Cell", "held_out", "objective", "task", "trained_variables"]

WATCHED = 4096  # tokens at most whose attention mass is measured: full attention is quadratic
# Settings that must be the same to go on from a checkpoint.
_IDENTITY = (
    "steps",
    "learning_rate",
    "schedule",
    "warmup_steps",
    "b2",
    "epsilon",
    "clip_norm",
    "validate_every",
    "vocabulary",
    "accumulate",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One model, trained on windows of one length with one seed."""

    model: str
    length: int
    seed: int

    def __str__(self) -> str:
        return f"{self.model}, {self.length:,} tokens, seed {self.seed}"

    def folder(self, parent: Path) -> Path:
        """The folder of its training."""
        return parent / f"{self.model}-{self.length}-{self.seed}"


def objective(corpus: Corpus) -> BitsPerByte:
    """Cross entropy, in bits per byte of the corpus."""
    return BitsPerByte(bytes_of=corpus.tokenizer.bytes_of)


def held_out(ids: np.ndarray, *, length: int, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """The windows of a held-out part of the text."""
    return consecutive_windows(ids, length=length, batch_size=batch_size, first_id=NUM_SPECIAL)


def task(cell: Cell, settings: Settings, corpus: Corpus, part: Part = WHOLE) -> Task[LanguageModel]:
    """Model, objective and windows of a cell.

    Args:
      cell: cell to train.
      settings: settings of the run.
      corpus: text to train on.
      part: part of each batch that this process computes.
    """
    length, batch_size = cell.length, settings.batch_sizes()[cell.length]
    model = build_of(cell, settings, corpus)
    batches = random_windows(
        corpus.windows(length),
        batch_size=batch_size,
        seed=cell.seed,
        part=part,
    )
    kept = settings.as_json()
    identity = {
        **dataclasses.asdict(cell),
        **{name: kept[name] for name in _IDENTITY},
        "sizes": dataclasses.asdict(settings.sizes()),
        "batch_size": batch_size,
        "text": corpus.text.digest,
    }
    return Task(
        model,
        objective(corpus),
        batches,
        lambda: map(
            part.of, held_out(corpus.split.validation, length=length, batch_size=batch_size)
        ),
        identity,
        streams=streams(cell.model),
        watch=mass_seen(cell, settings, corpus),
    )


def build_of(cell: Cell, settings: Settings, corpus: Corpus) -> LanguageModel:
    """The model of a cell."""
    vocab_size = corpus.tokenizer.vocab_size
    return build(cell.model, settings.sizes(), vocab_size=vocab_size, length=cell.length)


def mass_seen(
    cell: Cell, settings: Settings, corpus: Corpus
) -> Callable[[Any], dict[str, float]] | None:
    """(variables) -> the share of full attention's mass that the model's rounds see.

    "mass" is the mean over layers that hash, heads and queries of the first window to validate on,
    and "pairs" the share of all pairs that is seen, which keys at random would have as mass. None
    where the model does not hash.
    """
    num_hashes = rounds_of(cell.model)
    if num_hashes is None:
        return None
    length = min(cell.length, WATCHED)
    hashes = hashing_layers(cell.model, settings.num_layers)
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=settings.num_heads,
        head_dim=settings.head_dim,
        num_hashes=num_hashes,
        num_buckets=default_num_buckets(length, settings.chunk_size),
    )
    window = next(consecutive_windows(corpus.split.validation, length=length, batch_size=1,
                                     first_id=NUM_SPECIAL))  # fmt: skip
    tokens = jnp.asarray(window["tokens"])
    projections = jax.jit(
        lambda variables: shared_projections(build_of(cell, settings, corpus), variables, tokens)
    )

    def watch(variables: Any) -> dict[str, float]:
        qk, v = (x[hashes] for x in projections(variables))
        if settings.positions == "rotary":
            qk = rotary(qk, jnp.arange(length))
        found = hash_quality(
            qk, v, hash_buckets(qk, rotations), chunk_size=settings.chunk_size
        ).means()
        return {"mass": float(found.captured_mass), "pairs": float(found.visible_pairs)}

    return watch


def trained_variables(cell: Cell, settings: Settings, corpus: Corpus, folder: Path) -> Any:
    """The variables of a cell's best checkpoint.

    Args:
      cell: cell that was trained.
      settings: settings of its run.
      corpus: text that it was trained on.
      folder: folder of its training.

    Raises:
      Invalid: the checkpoints there are of another training, or there is none yet.
    """
    given = task(cell, settings, corpus)
    optimizer = settings.optimizer().build(settings.steps)
    example = next(iter(given.batches))
    abstract = jax.eval_shape(lambda: TrainState.create(given.model, optimizer, example, cell.seed))
    parallel = parallel_over("jit", jax.local_devices()[:1])
    with Checkpoints(folder / CHECKPOINTS, given.identity) as checkpoints:
        best = checkpoints.best_step
        if best is None:
            raise Invalid(f"{folder}: no checkpoint was written yet; train it further")
        shardings = jax.tree.map(lambda _: parallel.whole, abstract.kept())
        kept = checkpoints.restore(abstract.kept(), shardings, best)
    return abstract.replace(**kept.state).variables
