"""Every mask beside the oracle's picture of it, for the tests of masks and of engines."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from attnlab import masks
from tests import oracle

BATCH, QUERIES, KEYS, HEADS = 3, 13, 19, 6
KV_LENGTHS = (11, 0, 17)
Q_LENGTHS = (13, 5, 2)
OFFSETS = (0, 5, -3)
# Sorted ids as packing makes them, and ids in any order.
Q_IDS = np.array([[0] * 4 + [1] * 7 + [2] * 2, [5] * 13, [2, 0, 1, 0, 2, 2, 1, 1, 0, 9, 0, 1, 2]])
KV_IDS = np.array([[0] * 6 + [1] * 3 + [2] * 10, [5] * 7 + [6] * 12, [0, 1, 2] * 6 + [0]])
ARRAY = np.random.default_rng(0).uniform(size=(BATCH, HEADS, QUERIES, KEYS)) < 0.3
ARRAY[1, :, 3] = ARRAY[2, 1] = False


@dataclass(frozen=True)
class MaskCase:
    """A mask, and `picture(b, n)`, what example b and head n see: [T, S]."""

    name: str
    make: Callable[[], masks.Mask]
    picture: Callable[[int, int], np.ndarray]

    def whole(self) -> np.ndarray:
        """[B, N, T, S]."""
        return np.array([[self.picture(b, n) for n in range(HEADS)] for b in range(BATCH)])


def causal(offset):
    return lambda b, n: oracle.causal(QUERIES, KEYS, offset[b] if np.ndim(offset) else offset)


def window(left, right, offset=0):
    return lambda b, n: oracle.window(
        QUERIES, KEYS, left, right, offset[b] if np.ndim(offset) else offset
    )


def chunks(size, look_back, offset=(0,) * BATCH):
    def picture(b, n):
        return np.array(
            [
                [0 <= (i + offset[b]) // size - j // size <= look_back for j in range(KEYS)]
                for i in range(QUERIES)
            ]
        )

    return picture


def lengths(b, n):
    return oracle.padding(QUERIES, KEYS, KV_LENGTHS[b], Q_LENGTHS[b])


MASKS = (
    MaskCase("causal", masks.Causal, causal(0)),
    MaskCase("causal_offset", lambda: masks.Causal(4), causal(4)),
    MaskCase("causal_offsets", lambda: masks.Causal(jnp.array(OFFSETS)), causal(OFFSETS)),
    MaskCase("window", lambda: masks.Window(3, 2), window(3, 2)),
    MaskCase("window_left", lambda: masks.Window(2, None), window(2, None)),
    MaskCase("window_right", lambda: masks.Window(None, 0), window(None, 0)),
    MaskCase("window_none", lambda: masks.Window(None, None), window(None, None)),
    MaskCase(
        "window_offsets", lambda: masks.Window(1, 1, jnp.array(OFFSETS)), window(1, 1, OFFSETS)
    ),
    MaskCase("chunks", lambda: masks.Chunks(4), chunks(4, 1)),
    MaskCase(
        "chunks_offsets", lambda: masks.Chunks(3, 2, jnp.array(OFFSETS)), chunks(3, 2, OFFSETS)
    ),
    MaskCase(
        "padding",
        lambda: masks.Padding(jnp.array(KV_LENGTHS)),
        lambda b, n: oracle.padding(QUERIES, KEYS, KV_LENGTHS[b]),
    ),
    MaskCase("padding_one", lambda: masks.Padding(7), lambda b, n: oracle.padding(13, 19, 7)),
    MaskCase(
        "padding_both", lambda: masks.Padding(jnp.array(KV_LENGTHS), jnp.array(Q_LENGTHS)), lengths
    ),
    MaskCase(
        "segments",
        lambda: masks.Segments(jnp.array(Q_IDS), jnp.array(KV_IDS)),
        lambda b, n: oracle.segments(Q_IDS[b], KV_IDS[b]),
    ),
    MaskCase("explicit", lambda: masks.Explicit(jnp.array(ARRAY)), lambda b, n: ARRAY[b, n]),
    MaskCase(
        "explicit_heads", lambda: masks.Explicit(jnp.array(ARRAY[0])), lambda b, n: ARRAY[0, n]
    ),
    MaskCase(
        "explicit_pairs", lambda: masks.Explicit(jnp.array(ARRAY[0, 0])), lambda b, n: ARRAY[0, 0]
    ),
    MaskCase(
        "explicit_keys",
        lambda: masks.Explicit(jnp.array(ARRAY[:, :1, :1])),
        lambda b, n: np.broadcast_to(ARRAY[b, 0, :1], (QUERIES, KEYS)),
    ),
    MaskCase(
        "explicit_queries",
        lambda: masks.Explicit(jnp.array(ARRAY[..., :1])),
        lambda b, n: np.broadcast_to(ARRAY[b, n, :, :1], (QUERIES, KEYS)),
    ),
    MaskCase(
        "causal_padding",
        lambda: masks.Causal(3) & masks.Padding(jnp.array(KV_LENGTHS), jnp.array(Q_LENGTHS)),
        lambda b, n: causal(3)(b, n) & lengths(b, n),
    ),
    MaskCase(
        "all_of_them",
        lambda: (
            (masks.Explicit(jnp.array(ARRAY)) & masks.Causal(jnp.array(OFFSETS)))
            & (masks.Window(9, 4) & masks.Padding(jnp.array(KV_LENGTHS)))
        ),
        lambda b, n: (
            ARRAY[b, n]
            & causal(OFFSETS)(b, n)
            & window(9, 4)(b, n)
            & oracle.padding(QUERIES, KEYS, KV_LENGTHS[b])
        ),
    ),
)
