"""How far the logits of multiplicative attention spread before any training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.models import Britz
from experiments.tables import verdicts

__all__ = ["LogitVariance"]

_WIDTHS = (128, 1024)  # of W_1 h and W_2 s
_VOCAB, _BATCH, _LENGTH = 1000, 32, 32


@dataclasses.dataclass(frozen=True)
class LogitVariance:
    """The exponent with which the variance of the logits over the source grows with their width.

    Of Britz's model of 128 units, untrained, on random words.

    Attributes:
      attention: kind of attention: "mul" or "scaled-mul".
      exponent: exponent of the paper.
    """

    attention: str
    exponent: float

    def measure(self) -> dict[str, float]:
        """The exponent, and the variance at the smallest and the largest width."""
        first = self._variance(_WIDTHS[0])
        last = self._variance(_WIDTHS[1])
        found = {"d": math.log(last / first) / math.log(_WIDTHS[1] / _WIDTHS[0])}
        return found | {f"variance at {_WIDTHS[0]}": first, f"variance at {_WIDTHS[1]}": last}

    def written(self, values: Mapping[str, float]) -> str:
        """The exponent and the variances."""
        ends = ", ".join(f"{values[f'variance at {width}']:.2g} at {width}" for width in _WIDTHS)
        return f"d^{values['d']:.2f} ({ends})"

    def verdict(self, paper: str, values: Mapping[str, float]) -> str:
        """The verdict on the measured exponent; the paper's words are those of `exponent`."""
        del paper
        return verdicts.of_exponents({"d": self.exponent}, values)

    def _variance(self, width: int) -> float:
        model = Britz(
            _VOCAB,
            _VOCAB,
            embed_features=128,
            hidden_features=128,
            attention=self.attention,
            attention_features=width,
        )
        keys = jax.random.split(jax.random.key(0), 3)
        source = jax.random.randint(keys[0], (_BATCH, _LENGTH), 4, _VOCAB)
        target = jax.random.randint(keys[1], (_BATCH, _LENGTH), 4, _VOCAB)

        @jax.jit
        def weights(key: jax.Array) -> jax.Array:
            def both(model: Britz) -> jax.Array:
                return model.decode(model.encode(source), target, return_weights=True)[1]

            return model.init_with_output(key, method=both)[0]

        # A logit is the log of its weight but for a constant of the row.
        return float(np.mean(np.var(np.log(weights(keys[2]).astype(jnp.float32)), axis=-1)))
