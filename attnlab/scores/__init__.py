"""Scores: how alike a query and a key are, as values.

Each score is a small pytree whose leaves are its learned parameters. It says two things: what is
computed once for every position (`prepare`, O(T + S)), and how a block of prepared queries meets a
block of prepared keys (`logits`). After `prepare` only two meetings are left, a matrix product
(`Dot`) and a sum of tanh (`Additive`), so an engine that runs these two runs every score here:

| score                | formula                              | source                           |
| -------------------- | ------------------------------------ | -------------------------------- |
| `Dot`                | q·k · scale                          | Luong 2015 §3.1; Vaswani 2017    |
| `General`            | q·W·k                                | Luong 2015 §3.1                  |
| `Cosine`             | scale · q·k / (‖q‖‖k‖)               |                                  |
| `Additive`           | w·tanh(q + k)                        | Bahdanau 2014 §A.1.2             |
| `NormalizedAdditive` | gain · w/‖w‖ · tanh(q + k + bias)    | Salimans & Kingma 2016 §2        |
| `Concat`             | w·tanh(Wq q + Wk k) = w·tanh(W[q;k]) | Luong 2015 §3.1                  |
| `Location`           | (W q)_j, keys are not looked at      | Luong 2015 §3.1                  |

Shapes: q [..., T, Hq] and k [..., S, Hk], where `...` ends in the heads. A parameter is either
shared by all heads or leads with [N], one slice a query head.
"""

from __future__ import annotations

import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.checks import as_array, as_number, as_qkv, require, require_instance
from attnlab.core.shapes import fit
from attnlab.scores.tanh_sum import tanh_sum

__all__ = [
    "Additive",
    "Concat",
    "Cosine",
    "Dot",
    "General",
    "Location",
    "NormalizedAdditive",
    "Score",
    "as_operands",
    "require_score",
]


class Score(flax.struct.PyTreeNode):
    """How alike a query and a key are; the base of all scores."""

    # Whether q and k are compared entry by entry, so that their widths must agree.
    same_width = True

    def __call__(self, q: jax.Array, k: jax.Array) -> Score:
        """The score itself, so that a value may stand where a module that makes one does."""
        return self

    @property
    def max_keys(self) -> int | None:
        """Keys from here on have no logits and so no weight; None = every key has one."""
        return None

    def require_widths(self, q_width: int, k_width: int) -> None:
        """Refuses parameters that do not belong to queries and keys of these widths.

        Raises:
          ValueError: a parameter is no array, or its last axes are not what the widths ask for.
        """
        for name in self._parameters():
            as_array(f"{type(self).__name__}.{name}", getattr(self, name))
        remedy = f"for queries {q_width} wide and keys {k_width} wide; or project them"
        sizes = {"Hq": q_width, "Hk": k_width}
        for name, letters in self._last_axes().items():
            axes = f"{type(self).__name__}.{name}: *N {letters}"
            sizes = fit(axes, getattr(self, name), remedy=remedy, **sizes)
            sizes.pop("N")  # heads may share one parameter and not the other

    def prepare(
        self, q: jax.Array, k: jax.Array, *, precision=None
    ) -> tuple[Score, jax.Array, jax.Array]:
        """What is computed once a position: (a score for prepared arrays, q', k')."""
        return self, q, k

    def logits(self, q: jax.Array, k: jax.Array, *, precision=None) -> jax.Array:
        """Logits [..., bq, bk], at least float32, of prepared q [..., bq, H'] and k [..., bk, H'].

        Leading axes broadcast. Only the score that `prepare` returns needs this method.
        """
        raise TypeError(f"{type(self).__name__} has no logits of its own: call prepare first")

    def split_heads(self, num_kv_heads: int, group_size: int) -> Score:
        """The same score with every parameter as [1, K|1, G|1, ...], as an engine slices."""

        def split(name: str, shared_ndim: int):
            x = jnp.asarray(getattr(self, name))
            if x.ndim == shared_ndim:
                return x.reshape(1, 1, 1, *x.shape)
            num_heads = num_kv_heads * group_size
            require(
                x.ndim == shared_ndim + 1 and x.shape[0] == num_heads,
                f"{type(self).__name__}.{name} must have {shared_ndim} axes (shared by all heads) "
                f"or lead with one slice for each of {num_heads} query heads; got {x.shape}",
            )
            return x.reshape(1, num_kv_heads, group_size, *x.shape[1:])

        return self.replace(**{name: split(name, n) for name, n in self._parameters().items()})

    def _parameters(self) -> dict[str, int]:
        """Names of the array fields, each with its rank when all heads share it."""
        return {}

    def _last_axes(self) -> dict[str, str]:
        """Letters of the last axes of array fields, by their names; Hq and Hk are known."""
        return {}


def require_score(score: Any) -> None:
    """`score` must be a value, not its name, its class or a module that makes one."""
    require_instance(
        "score",
        score,
        isinstance(score, Score),
        "a value of attnlab.scores, such as scores.Additive(w)",
        " (a module with parameters of its own goes to attnlab.MultiHeadAttention(score=…))",
    )


def as_operands(score: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """The arrays q, k and v of attention, which fit together and the score.

    Args:
      score: score.
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D]; None where only logits are wanted.

    Raises:
      ValueError: they do not fit.
    """
    require_score(score)
    q, k, v = as_qkv(q, k, v, same_width=score.same_width)
    score.require_widths(q.shape[-1], k.shape[-1])
    return q, k, v


class Dot(Score):
    """q·k · scale.

    Args:
      scale: factor of the product, a number that is known while tracing (a learned one belongs to
        `Cosine`, or multiplies q); None = 1/√H, the scaled dot product (Vaswani 2017 §3.2.1); 1.0
        = Luong's dot.
    """

    scale: float | None = flax.struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        if self.scale is not None:
            object.__setattr__(self, "scale", as_number("Dot.scale", self.scale))

    def prepare(self, q, k, *, precision=None):
        del precision  # no matrix product
        scale = self._scale_of(q)
        # In half precision only a power of 2 leaves the digits of q as they are, and one above 1
        # may be more than float16 holds.
        folds = abs(math.frexp(scale)[0]) == 0.5 and abs(scale) <= 1
        if jnp.finfo(q.dtype).bits >= 32 or folds:
            return Dot(1.0), q * jnp.asarray(scale, q.dtype), k
        return Dot(scale), q, k

    def logits(self, q, k, *, precision=None):
        product = jnp.matmul(
            q,
            jnp.swapaxes(k, -1, -2),
            precision=precision,
            preferred_element_type=jnp.promote_types(q.dtype, jnp.float32),
        )
        scale = self._scale_of(q)
        return product if scale == 1.0 else product * scale

    def _scale_of(self, q) -> float:
        return 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale


class General(Score):
    """q·W·k: the bilinear, or multiplicative, score.

    Args:
      w: matrix W, [Hq, Hk] or [N, Hq, Hk].
    """

    w: ArrayLike

    same_width = False

    def prepare(self, q, k, *, precision=None):
        return Dot(1.0), _by_head(q, self.w, precision), k

    def _parameters(self):
        return {"w": 2}

    def _last_axes(self):
        return {"w": "Hq Hk"}


class Cosine(Score):
    """scale · q·k / (‖q‖‖k‖), in [−scale, scale]; a zero vector is alike to nothing (logit 0).

    So is one whose square is no number of its dtype, of float32 at least: beyond about 1e19.

    Args:
      scale: factor of the cosine, a number or a learned array [] or [N].
    """

    scale: ArrayLike = 1.0

    def prepare(self, q, k, *, precision=None):
        del precision  # no matrix product
        scale = jnp.asarray(self.scale)[..., None, None]
        return Dot(1.0), (_unit(q) * scale).astype(q.dtype), _unit(k).astype(k.dtype)

    def _parameters(self):
        return {"scale": 0}


class Additive(Score):
    """w·tanh(q + k), with q and k already projected to the hidden width.

    Args:
      w: weights of the hidden units, [hidden] or [N, hidden].
    """

    w: ArrayLike

    def logits(self, q, k, *, precision=None):
        del precision  # no matrix product
        return tanh_sum(q, k, jnp.asarray(self.w))

    def _parameters(self):
        return {"w": 1}

    def _last_axes(self):
        return {"w": "Hq"}


class NormalizedAdditive(Score):
    """gain · (w/‖w‖)·tanh(q + k + bias): the direction and the size of w learned apart.

    Args:
      w: vector whose direction weights the hidden units, [hidden] or [N, hidden]; zero where its
        squares leave the range of float32, as of 1e-30.
      gain: length of these weights, [] or [N]; initialize to 1/√hidden.
      bias: term added inside the tanh, [hidden] or [N, hidden].
    """

    w: ArrayLike
    gain: ArrayLike
    bias: ArrayLike

    def prepare(self, q, k, *, precision=None):
        del precision  # no matrix product
        w = _unit(jnp.asarray(self.w)) * jnp.asarray(self.gain)[..., None]
        bias = jnp.asarray(self.bias, q.dtype)[..., None, :]
        return Additive(w), q + bias, k

    def _parameters(self):
        return {"w": 1, "gain": 0, "bias": 1}

    def _last_axes(self):
        return {"w": "Hq", "bias": "Hq"}


class Concat(Score):
    """w·tanh(Wq q + Wk k), which is Luong's w·tanh(W [q; k]) with W split in two.

    Args:
      w: weights of the hidden units, [hidden] or [N, hidden].
      wq: part of W that meets the query, [Hq, hidden] or [N, Hq, hidden].
      wk: part of W that meets the key, [Hk, hidden] or [N, Hk, hidden].
    """

    w: ArrayLike
    wq: ArrayLike
    wk: ArrayLike

    same_width = False

    def prepare(self, q, k, *, precision=None):
        return (
            Additive(self.w),
            _by_head(q, self.wq, precision),
            _by_head(k, self.wk, precision),
        )

    def _parameters(self):
        return {"w": 1, "wq": 2, "wk": 2}

    def _last_axes(self):
        return {"w": "hidden", "wq": "Hq hidden", "wk": "Hk hidden"}


class Location(Score):
    """(W q)_j: where to look is read off the query alone; the keys only give their number S.

    Keys beyond S_max get no weight, as in the paper, which ignores the words near the end.

    Args:
      w: matrix W, [Hq, S_max] or [N, Hq, S_max].
    """

    w: ArrayLike

    same_width = False

    @property
    def max_keys(self):
        return jnp.shape(self.w)[-1]

    def prepare(self, q, k, *, precision=None):
        del precision  # no matrix product
        # A row of W per key position is a key that does not depend on the input.
        rows = jnp.swapaxes(jnp.asarray(self.w, q.dtype), -1, -2)[..., : k.shape[-2], :]
        missing = k.shape[-2] - rows.shape[-2]
        return Dot(1.0), q, jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, missing), (0, 0)])

    def _parameters(self):
        return {"w": 2}

    def _last_axes(self):
        return {"w": "Hq S_max"}


def _by_head(x: jax.Array, w: ArrayLike, precision: Any) -> jax.Array:
    """x·w, [B, K, G, L, H] by [1, K|1, G|1, H, H'], with a matrix for each head.

    One that all share has as its gradient one product over examples, positions and heads. XLA
    computes it wrongly where devices divide x by positions and the result by heads, both by
    examples.
    """
    w = jnp.asarray(w, x.dtype)
    of_heads = jnp.broadcast_shapes(x.shape[1:-2], w.shape[:-2])
    w = jnp.broadcast_to(w, (*of_heads, *w.shape[-2:]))
    return jnp.matmul(x, w, precision=precision)


def _unit(x: jax.Array) -> jax.Array:
    """x / ‖x‖ along the last axis in at least float32; zero, with gradient zero, where x is."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    square = jnp.sum(x * x, -1, keepdims=True)
    is_zero = square == 0
    return jnp.where(is_zero, 0, x * jax.lax.rsqrt(jnp.where(is_zero, 1, square)))
