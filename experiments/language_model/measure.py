"""What is measured of a model: the attention mass that its rounds see, and its bits per byte."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.windows import consecutive_windows
from attnlab.models.activations import shared_projections
from attnlab.models.transformer import LanguageModel
from attnlab.ops.lsh import hash_buckets, hash_quality, make_rotations
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.positions import rotary
from attnlab.runs import processes
from attnlab.tokens import NUM_SPECIAL
from attnlab.training.curve import Meter
from attnlab.training.objective import Batch, Objective
from attnlab.training.step import StepMetrics, make_validation_step
from experiments.language_model.models import hashing_layers, rounds_of
from experiments.language_model.settings import Settings

WATCHED = 4096  # tokens at most whose attention mass is measured: full attention is quadratic


def mass_seen(
    name: str, model: LanguageModel, settings: Settings, ids: np.ndarray, length: int
) -> Callable[[Any], dict[str, float]] | None:
    """(variables) -> the share of full attention's mass that the model's rounds see.

    "mass" is the mean over layers that hash, heads and queries of the first window to validate on,
    and "pairs" the share of all pairs that is seen, which keys at random would have as mass. None
    where the model does not hash.
    """
    num_hashes = rounds_of(name)
    if num_hashes is None:
        return None
    length = min(length, WATCHED)
    hashes = hashing_layers(name, settings.num_layers)
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=settings.num_heads,
        head_dim=settings.head_dim,
        num_hashes=num_hashes,
        num_buckets=default_num_buckets(length, settings.chunk_size),
    )
    window = next(consecutive_windows(ids, length=length, batch_size=1, first_id=NUM_SPECIAL))
    tokens = jnp.asarray(window["tokens"])
    projections = jax.jit(lambda variables: shared_projections(model, variables, tokens))

    def watch(variables: Any) -> dict[str, float]:
        qk, v = (x[hashes] for x in projections(variables))
        if settings.positions == "rotary":
            qk = rotary(qk, jnp.arange(length))
        quality = hash_quality(
            qk, v, hash_buckets(qk, rotations), chunk_size=settings.chunk_size
        ).means()
        return {"mass": float(quality.captured_mass), "pairs": float(quality.visible_pairs)}

    return watch


def bits_per_byte(
    model: LanguageModel, objective: Objective, variables: Any, batches: Iterable[Batch]
) -> float:
    """Bits per byte of a whole part, each token predicted once; each process takes some batches."""
    step, meter = jax.jit(make_validation_step(model, objective)), Meter()
    mine = itertools.islice(batches, processes.index(), None, processes.count())
    metrics = [jax.tree.map(float, step(variables, batch)) for batch in mine]
    # In the order of the text: the sum is the same for any number of processes.
    for turn in itertools.zip_longest(*processes.gathered(metrics)):
        for one in filter(None, turn):
            meter.add(StepMetrics(*one))
    return meter.means(objective)[objective.headline]
