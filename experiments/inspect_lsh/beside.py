"""Other attention beside LSH: how much of full attention each sees on the same activations."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks
from attnlab.mechanisms.attentions import Surroundings, in_models, kind_of, parse
from attnlab.ops.routes import Function
from attnlab.runs.errors import Invalid
from attnlab.scores import Dot

MEASURES = ("captured_mass", "top_k_recall", "relative_error", "visible_pairs")


@dataclasses.dataclass(frozen=True)
class Beside:
    """The pairs that an attention sees, measured as those of LSH are.

    Attributes:
      mechanism: name of the attention.
      means: `MEASURES`, averaged over layers and heads.
      per_head: `MEASURES`, [layers][heads].
      bits: loss of the model at the end of training, in bits per byte; None = untrained.
    """

    mechanism: str
    means: dict[str, float]
    per_head: dict[str, list[list[float]]]
    bits: float | None = None


def parts_of(name: str) -> dict[str, Any]:
    """The route, and the score if it has one, of an attention that needs no training.

    Raises:
      Invalid: it is none, or has parameters; one line that begins with the flag.
    """
    try:
        attention, *more = parse(name, in_models())
    except Invalid as error:
        raise Invalid(f"--beside={name}: {error}") from None
    kind = kind_of(attention.kind)
    is_module = kind.own is not None and kind.own.kind == "module"
    parts = {} if is_module else kind.parts(attention, Surroundings(causal=True, length=1))
    unfit = isinstance(parts.get("score"), nn.Module) or parts.get("position_bias") is not None
    if more or is_module or unfit or parts["route"].hash_keywords:
        raise Invalid(
            f"--beside={name}: must see its pairs without parameters of its own or a hash, such as"
            " window-128, or a mask, a score, a route or a function of yours"
        )
    return parts


def measure(name: str, qk: jax.Array, v: jax.Array, *, top_k: int, bits: float | None) -> Beside:
    """The row of the attention of that name; qk (the keys too) and v are [layers, L, N, H]."""
    parts = parts_of(name)
    of_layer = jax.jit(lambda qk, v: _of_layer(parts, qk, v, top_k))
    layers = [of_layer(*arrays) for arrays in zip(qk, v, strict=True)]
    per_head = dict(zip(MEASURES, np.stack(layers, 1).tolist(), strict=True))
    return Beside(name, {x: float(np.mean(per_head[x])) for x in MEASURES}, per_head, bits)


def _of_layer(parts: dict[str, Any], qk: jax.Array, v: jax.Array, top_k: int) -> jax.Array:
    """`MEASURES` of a layer, [4, N], of qk and v [L, N, H].

    No query sees itself, as in `hash_quality`; one that sees no other key has its own value.
    """
    route = parts["route"]
    length = len(qk)
    unit_keys = qk / jnp.linalg.norm(qk, axis=-1, keepdims=True)
    k = qk if route.shares_qk else unit_keys
    score = parts.get("score", Dot() if isinstance(route, Function) else Dot(1.0))
    weights = route.weights(score, qk[None], k[None], mask=masks.Causal())[0]
    allowed = jnp.tri(length, k=-1, dtype=bool)[None]  # [1, L, L]
    logits = jnp.where(allowed, jnp.einsum("tnh,snh->nts", qk, unit_keys), -jnp.inf)

    # The first query may see nothing, so from here on there are L − 1: [N, L - 1, L].
    seen = (allowed & (weights != 0))[:, 1:]
    logits = logits[:, 1:]
    full_weights = jax.nn.softmax(logits)
    seen_weights = jnp.where(seen, full_weights, 0)
    mass = seen_weights.sum(-1)  # [N, L - 1]

    # [N, L - 1, H]
    full_context = jnp.einsum("nts,snh->nth", full_weights, v)
    seen_sum = jnp.einsum("nts,snh->nth", seen_weights, v)
    own_values = v[1:].swapaxes(0, 1)
    alone = (mass == 0)[..., None]
    context = jnp.where(alone, own_values, seen_sum / jnp.where(alone, 1, mass[..., None]))
    distance = jnp.linalg.norm(context - full_context, axis=(1, 2))
    error = distance / jnp.linalg.norm(full_context, axis=(1, 2))  # [N]

    # [N, L - 1, k]: early queries have fewer than k keys.
    best, places = jax.lax.top_k(logits, min(top_k, length))
    counted = best > -jnp.inf
    recalled = counted & jnp.take_along_axis(seen, places, -1)
    recall = recalled.sum(-1) / counted.sum(-1)  # [N, L - 1]

    pairs = seen.sum((1, 2)) / allowed.sum()  # [N]
    return jnp.stack([mass.mean(-1), recall.mean(-1), error, pairs])
