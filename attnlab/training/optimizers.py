"""The papers' optimizers as optax chains: clip, precondition, scale by the learning rate."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attnlab.core.checks import as_count, as_number, as_rate, require, require_choice
from attnlab.training import schedules

OPTIMIZERS = ("adam", "adadelta", "adafactor", "sgd")
SCHEDULES = ("constant", "linear", "cosine", "rsqrt")


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """What updates the parameters.

    Attributes:
      optimizer: name of the optimizer: "adam" (Kingma & Ba 2015), "adadelta" (ρ 0.95; Zeiler 2012,
        as Bahdanau et al. 2014 use it, with learning_rate 1), "adafactor" (Shazeer & Stern 2018,
        algorithm 4: second moments, factored where the two largest axes of an array are at least
        128, so not those of most heads; update clipping, steps relative to the parameters' size, no
        first moment) or "sgd".
      learning_rate: learning rate at its peak.
      schedule: course of the learning rate over steps, after a linear warm-up: "constant", "linear"
        or "cosine" to zero at the end, or "rsqrt", step^−½ (Vaswani et al. 2017, §5.3, whose peak
        is (d_model · warmup_steps)^−½).
      warmup_steps: number of steps until the peak.
      b1: decay of Adam's first moment.
      b2: decay of Adam's second moment; the other optimizers have neither.
      bias_correction: whether Adam's moments are divided by 1 − b^step (Kingma & Ba 2015, §3); the
        released BERT leaves it out, so that its first steps are longer: the first is
        (1 − b1) / √(1 − b2) times the learning rate, 3.2 times by the defaults, in place of once.
      weight_decay: share λ of the parameters that a step takes off beside Adam's update, times the
        learning rate (Loshchilov & Hutter 2019); not of biases and of the scales of LayerNorm.
      epsilon: epsilon of Adam or Adadelta, more than 0; None = 1e-8 and 1e-6.
      clip_norm: largest L2 norm of the gradient over all parameters; a larger gradient is scaled to
        it. 0 = no limit.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    b1: float = 0.9
    b2: float = 0.999
    bias_correction: bool = True
    weight_decay: float = 0.0
    epsilon: float | None = None
    clip_norm: float = 0.0

    def __post_init__(self):
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("schedule", self.schedule, SCHEDULES)
        for name in ("b1", "b2", "bias_correction", "weight_decay", "epsilon"):
            of = ("adam", "adadelta") if name == "epsilon" else ("adam",)
            got = getattr(self, name)
            require(
                self.optimizer in of or got == getattr(OptimizerSettings, name),
                f"{name} belongs to {' and '.join(of)}; got {name}={got} with "
                f"optimizer={self.optimizer!r}",
            )
        for name in ("b1", "b2"):
            as_rate(getattr(self, name), name)
        for name in ("learning_rate", "weight_decay", "clip_norm"):
            number = as_number(name, getattr(self, name))
            require(number >= 0, f"{name} must be at least 0; got {number}")
        as_count("warmup_steps is a number of steps,", self.warmup_steps)
        require(
            self.epsilon is None or as_number("epsilon", self.epsilon) > 0,
            f"epsilon must be more than 0, or None; got {self.epsilon}",
        )

    @classmethod
    def bert(cls, learning_rate: float, warmup_steps: int) -> OptimizerSettings:
        """Adam as released with BERT (Devlin et al. 2018, A.2; optimization.py): ε 1e-6, clip 1."""
        return cls(
            learning_rate=learning_rate,
            schedule="linear",
            warmup_steps=warmup_steps,
            epsilon=1e-6,
            bias_correction=False,
            weight_decay=0.01,
            clip_norm=1.0,
        )

    def learning_rates(self, total_steps: int) -> optax.Schedule:
        """The learning rate over steps."""
        if self.schedule == "linear":
            return schedules.linear(self.learning_rate, self.warmup_steps, total_steps)
        if self.schedule == "cosine":
            return schedules.cosine(self.learning_rate, self.warmup_steps, total_steps)
        if self.schedule == "rsqrt":
            return schedules.rsqrt(self.learning_rate, self.warmup_steps)
        return schedules.constant(self.learning_rate, self.warmup_steps)

    def build(self, total_steps: int) -> optax.GradientTransformation:
        """The chain for a training of `total_steps`."""
        precondition = {
            "adam": lambda: (optax.scale_by_adam if self.bias_correction else _uncorrected_adam)(
                self.b1, self.b2, 1e-8 if self.epsilon is None else self.epsilon
            ),
            "adadelta": lambda: optax.scale_by_adadelta(
                rho=0.95, eps=1e-6 if self.epsilon is None else self.epsilon
            ),
            "adafactor": lambda: optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.scale_by_param_block_rms(),
            ),
            "sgd": optax.identity,
        }[self.optimizer]()
        clip = optax.clip_by_global_norm(self.clip_norm) if self.clip_norm else optax.identity()
        rate = optax.scale_by_learning_rate(self.learning_rates(total_steps))
        if not self.weight_decay:  # the state of a chain counts its parts
            return optax.chain(clip, precondition, rate)
        decay = optax.add_decayed_weights(self.weight_decay, mask=_decays)
        return optax.chain(clip, precondition, decay, rate)


def _uncorrected_adam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """m / (√v + ε) of the moments as they are, which begin at 0."""

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return {"first": zeros, "second": zeros}

    def update(grads, moments, params=None):
        del params
        first = optax.tree.update_moment(grads, moments["first"], b1, 1)
        second = optax.tree.update_moment(grads, moments["second"], b2, 2)
        steps = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), first, second)
        return steps, {"first": first, "second": second}

    return optax.GradientTransformation(init, update)


def _decays(params: Any) -> Any:
    """Which arrays are decayed."""

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        # Below the name of a parameter that has logical axes is the value of their box.
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return names[-1] not in ("bias", "scale")

    return jax.tree.map_with_path(decays, params)
