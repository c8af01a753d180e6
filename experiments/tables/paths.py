"""How far a signal travels between two positions, found by following it through layers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from attnlab import dot_product_attention, window_attention
from attnlab.bench.chains import longest_chain
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from experiments.tables.growth import Exponents

__all__ = ["PathLength"]

_BASE = {"n": 64, "k": 4, "r": 8}  # tokens, tokens of a kernel, neighbors
_WIDTH = 2
_Layer = Callable[[jax.Array], jax.Array]  # of an array [n, width]; hashable


@dataclasses.dataclass(frozen=True)
class PathLength(Exponents):
    """The exponents with which the longest path through layers grows.

    A path is the longest chain of matrix products in the fewest layers of a kind through which the
    last position depends on the first.

    Attributes:
      layer: kind of layer: "self_attention", "recurrent", "convolutional", whose i-th layer has
        gaps of kⁱ tokens, or "restricted".
      exponents: exponents of the paper, in pairs of a size and a number; "log n" is a size, too.
    """

    layer: str
    exponents: tuple[tuple[str, float], ...]

    def measure(self) -> dict[str, float]:
        """log₂ of what doubling each of the sizes multiplies the path by."""
        return {size: math.log2(self._longer(size)) for size, _ in self.exponents}

    def written(self, values: Mapping[str, float]) -> str:
        """The exponents behind their sizes."""
        return " ".join(f"({size})^{values[size]:.2f}" for size, _ in self.exponents)

    def _longer(self, size: str) -> float:
        name, is_log = size.removeprefix("log "), size.startswith("log ")
        base = _BASE | ({"n": _BASE["n"] ** 2} if size == "log k" else {})
        changed = base | {name: base[name] ** 2 if is_log else 2 * base[name]}
        return self._path(**changed) / self._path(**base)

    def _path(self, *, n: int, k: int, r: int) -> int:
        x = jax.random.normal(jax.random.key(0), (n, _WIDTH))
        reached = jnp.zeros((n, 1), bool).at[-1].set(True)
        layers: list[_Layer] = []
        while not reached[0]:
            layers.append(_LAYERS[self.layer](len(layers), k, r))
            reached = _read(layers[-1], x, reached)
        return longest_chain(lambda x: functools.reduce(lambda x, layer: layer(x), layers, x), x)


@functools.partial(jax.jit, static_argnums=0)
def _read(layer: _Layer, x: jax.Array, positions: jax.Array) -> jax.Array:
    """The positions [n, 1] that a layer reads for its outputs at some positions [n, 1]."""
    gradient = jax.grad(lambda x: jnp.sum(layer(x) * x, where=positions))(x)
    return jnp.any(gradient != 0, axis=-1, keepdims=True)


def _self_attention(index: int, k: int, r: int) -> _Layer:
    del index, k, r
    return lambda x: _one_head(dot_product_attention, x, implementation="dense")


def _restricted(index: int, k: int, r: int) -> _Layer:
    del index, k
    return _window(r // 2)


@functools.cache  # one program for the layers of a stack
def _window(reach: int) -> _Layer:
    return lambda x: _one_head(window_attention, x, window=(reach, reach))


def _one_head(attend: Callable[..., jax.Array], x: jax.Array, **options: object) -> jax.Array:
    x = x[None, :, None]
    return attend(x, x, x, **options)[0, :, 0]


def _recurrent(index: int, k: int, r: int) -> _Layer:
    del k, r
    module = Recurrent(cell=TanhCell, features=_WIDTH)
    variables = module.init(jax.random.key(index), jnp.zeros((1, 1, _WIDTH)))
    return lambda x: module.apply(variables, x[None])[0][0]


def _convolutional(index: int, k: int, r: int) -> _Layer:
    del r
    kernel = jax.random.normal(jax.random.key(index), (k, _WIDTH, _WIDTH))
    gap = k**index

    def layer(x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x[None],
            kernel,
            window_strides=(1,),
            padding=[((k - 1) * gap, 0)],
            rhs_dilation=(gap,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )[0]

    return layer


_LAYERS: dict[str, Callable[[int, int, int], _Layer]] = {
    "self_attention": _self_attention,
    "restricted": _restricted,
    "recurrent": _recurrent,
    "convolutional": _convolutional,
}
