"""The attention mass that the hash rounds of a model see."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.windows import consecutive_windows
from attnlab.models.activations import shared_projections
from attnlab.models.transformer import LanguageModel
from attnlab.ops.lsh import hash_buckets, hash_quality, make_rotations
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.positions import rotary
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
    length = min(length, WATCHED, ids.size)  # padding is no key to be seen
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
        qk, v = projections(variables)
        qk = qk[hashes]
        v = v[hashes]
        if settings.positions == "rotary":
            qk = rotary(qk, jnp.arange(length))
        quality = hash_quality(
            qk, v, hash_buckets(qk, rotations), chunk_size=settings.chunk_size
        ).means()
        return {"mass": float(quality.captured_mass), "pairs": float(quality.visible_pairs)}

    return watch
