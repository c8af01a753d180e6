"""The cost of a training in floating-point operations: as a paper estimates it, and counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench.operations import count
from attnlab.models.transformer import Transformer, TransformerConfig
from attnlab.training.objective import token_sums
from experiments.tables import verdicts

__all__ = ["TrainingCost"]

_SENTENCES, _LENGTH = 1000, 25  # a batch of "about 25,000 source and 25,000 target tokens", §5.1
_DEVICES, _RATE = 8, 9.5e12  # P100s, and the operations a second that footnote 5 gives one


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """The cost of a training of the Transformer.

    The paper multiplies the time, the number of GPUs and the rate that one sustains (Vaswani et al.
    2017, §6.1). Counted are the products of matrices in the traced gradient of a batch's loss.

    Attributes:
      hours: hours of training.
      steps: number of training steps.
      fields: fields of the configuration with other values than the base model's, in pairs.
    """

    hours: float
    steps: int
    fields: tuple[tuple[str, Any], ...] = ()

    def measure(self) -> dict[str, float]:
        """The operations of the whole training: estimated, and counted."""
        # Scanned layers do as much, and one is traced for all.
        config = TransformerConfig(37_000, scan_layers=True, **dict(self.fields))
        model = Transformer(config)
        tokens = jax.ShapeDtypeStruct((_SENTENCES, _LENGTH), jnp.int32)
        params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]

        def loss(params: Any, source: jax.Array, target: jax.Array) -> jax.Array:
            logits = model.apply({"params": params}, source, target)
            assert isinstance(logits, jax.Array)
            return token_sums(logits, target, label_smoothing=0.1)["loss"]

        of_step = count(jax.grad(loss), params, tokens, tokens).products
        return {
            "estimated": self.hours * 3600 * _DEVICES * _RATE,
            "counted": float(of_step * self.steps),
        }

    def written(self, values: Mapping[str, float]) -> str:
        """Both numbers, and what share of the first the second is."""
        estimated, counted = values["estimated"], values["counted"]
        return f"{estimated:.1e}; counted {counted:.1e}, {counted / estimated:.0%} of it"

    def verdict(self, paper: str, values: Mapping[str, float]) -> str:
        """The verdict on the paper's estimate, with its digits."""
        same = f"{values['estimated']:.1e}" == f"{float(paper):.1e}"
        return verdicts.EXACT if same else verdicts.NOT_EXACT
