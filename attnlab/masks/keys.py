"""The keys that a mask shows, for attention that never looks at pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.axes import lead_with_ones
from attnlab.masks.mask import Mask, as_mask


def visible_keys(mask: Mask | ArrayLike | None, num_keys: int) -> jax.Array:
    """The keys [*B, S] that a mask shows to every query that is not before them, booleans.

    For attention that never looks at pairs, such as linear attention: it hides the future by
    itself, and can leave a key out for all queries only. `first_position` says where these stand.

        >>> from attnlab.masks import from_padding
        >>> visible_keys(from_padding(jnp.array([[True, False, True]])), 3)
        Array([[ True, False,  True]], dtype=bool)

    Raises:
      NotImplementedError: the mask is not made of `Causal`, `Padding` of keys, and `from_padding`.
    """
    seen = jnp.ones(num_keys, bool)
    mask = as_mask(mask)
    parts = () if mask is None else mask.parts()
    for part in parts:
        keys = part.keys
        band = part.band
        if part.lengths is not None and part.lengths.q_lengths is None:
            lengths = jnp.asarray(part.lengths.kv_lengths)[..., None]
            keys = lead_with_ones(jnp.arange(num_keys), lengths.ndim) < lengths
        if keys is not None:
            seen = lead_with_ones(seen, keys.ndim) & lead_with_ones(keys, seen.ndim)
        elif band is None or (band.left, band.right) != (None, 0):
            got = type(part).__name__
            remedy = "leave it out; Causal, Padding and from_padding do"
            if part.lengths is not None:
                got = f"{got}.q_lengths"
                remedy = "leave q_lengths out"
            raise NotImplementedError(
                "this attention hides keys from all queries or from none; got a mask with"
                f" {got} ({remedy})"
            )
    return seen
