"""A trained model on the test part: as it is, with other numbers of rounds, without attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab.runs import processes
from attnlab.training.curve import Meter, read_metrics
from attnlab.training.loop import Trained
from attnlab.training.step import StepMetrics, make_validation_step
from experiments.language_model.corpus import Corpus
from experiments.language_model.models import ablated, with_rounds
from experiments.language_model.rows import NO_ATTENTION, Quality
from experiments.language_model.settings import Settings
from experiments.language_model.training import Cell, build_of, held_out, objective

__all__ = ["evaluations", "measure"]


def evaluations(cell: Cell, settings: Settings) -> list[str]:
    """The names that a cell's parameters are evaluated under, its own first."""
    others = [with_rounds(cell.model, n) for n in settings.evaluated_rounds(cell.model)]
    return [cell.model, *others, NO_ATTENTION]


def measure(
    cell: Cell, settings: Settings, corpus: Corpus, trained: Trained, folder: Path
) -> Iterator[Quality]:
    """Yields a row for each of `evaluations`.

    Args:
      cell: cell that was trained.
      settings: settings of the run.
      corpus: text, whose test part is read.
      trained: result of the training.
      folder: folder of the training, with its curve.
    """
    curve = read_metrics(folder)
    watched = [row for row in curve if row["kind"] == "validation" and "mass" in row]
    for name in evaluations(cell, settings):
        zeroed = name == NO_ATTENTION
        variables = ablated(cell.model, trained.variables) if zeroed else trained.variables
        model = Cell(cell.model if zeroed else name, cell.length, cell.seed)
        bits = bits_per_byte(model, settings, corpus, variables, corpus.split.test)
        seen = watched if name == cell.model else []
        yield Quality(
            cell.model,
            cell.length,
            cell.seed,
            name,
            bits,
            parameters=trained.num_parameters,
            tokens=settings.steps * settings.batch_sizes()[cell.length] * cell.length,
            step=trained.step,
            seconds=trained.seconds,
            steps=tuple(row["step"] for row in seen),
            masses=tuple(row["mass"] for row in seen),
            pairs=tuple(row["pairs"] for row in seen),
        )


def bits_per_byte(
    cell: Cell, settings: Settings, corpus: Corpus, variables: Any, part: np.ndarray
) -> float:
    """Bits per byte of a whole part, each token predicted once; each process takes some batches."""
    of_bytes, meter = objective(corpus), Meter()
    step = jax.jit(make_validation_step(build_of(cell, settings, corpus), of_bytes))
    batch_size = settings.batch_sizes()[cell.length]
    batches = held_out(part, length=cell.length, batch_size=batch_size)
    mine = itertools.islice(batches, processes.index(), None, processes.count())
    found = [jax.tree.map(float, step(variables, batch)) for batch in mine]
    # In the order of the text: the sum is the same for any number of processes.
    for turn in itertools.zip_longest(*processes.gathered(found)):
        for one in filter(None, turn):
            meter.add(StepMetrics(*one))
    return meter.means(of_bytes)[of_bytes.headline]
