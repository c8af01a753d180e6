"""Every score of the library beside its equation in the oracle, and arrays for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnlab import scores
from attnlab.testing import Sizes
from tests import oracle


@dataclass(frozen=True)
class ScoreCase:
    """A score of the library beside its equation in the oracle.

    Attributes:
      name: name of the score, for the test's id.
      build: function of the parameters that returns the library's score.
      equation: function of the oracle with the same parameters.
      shapes: shapes of the parameters, each as one head has it.
      key_width: width of the keys, Hk; None = the width of the queries.
    """

    name: str
    build: Callable[..., scores.Score]
    equation: Callable
    shapes: Callable[[Sizes], tuple[tuple[int, ...], ...]] = lambda sizes: ()
    key_width: int | None = None

    def parameters(self, rng, sizes: Sizes, *, per_head: bool = True) -> tuple[np.ndarray, ...]:
        """Normal numbers; positive where they are a scale."""
        lead = (sizes.num_heads,) if per_head else ()
        drawn = (rng.normal(size=lead + shape) for shape in self.shapes(sizes))
        return tuple(x if x.ndim > len(lead) else np.abs(x) + 0.5 for x in drawn)

    def qkv(self, rng, sizes: Sizes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Normal numbers: q [B, T, N, Hq], k [B, S, K, Hk], v [B, S, K, D]."""
        queries = (sizes.batch, sizes.queries, sizes.num_heads)
        keys = (sizes.batch, sizes.keys, sizes.num_kv_heads)
        return (
            rng.normal(size=(*queries, sizes.width)),
            rng.normal(size=(*keys, self.key_width or sizes.width)),
            rng.normal(size=(*keys, sizes.value_width)),
        )


SCALED_DOT = ScoreCase("scaled_dot", lambda: scores.Dot(), oracle.scaled_dot)
SCORES = (
    ScoreCase("dot", lambda: scores.Dot(1.0), oracle.dot),
    SCALED_DOT,
    ScoreCase("general", scores.General, oracle.general, lambda z: ((z.width, 5),), key_width=5),
    ScoreCase("cosine", scores.Cosine, oracle.cosine, lambda z: ((),)),
    ScoreCase("additive", scores.Additive, oracle.additive, lambda z: ((z.width,),)),
    ScoreCase(
        "normalized_additive",
        scores.NormalizedAdditive,
        oracle.normalized_additive,
        lambda z: ((z.width,), (), (z.width,)),
    ),
    ScoreCase(
        "concat",
        scores.Concat,
        oracle.concat,
        lambda z: ((z.hidden,), (z.width, z.hidden), (5, z.hidden)),
        key_width=5,
    ),
    # Two rows of W more than there are keys.
    ScoreCase("location", scores.Location, oracle.location, lambda z: ((z.width, z.keys + 2),)),
)
