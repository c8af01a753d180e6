"""How the work and the memory of a layer grow with each of its sizes, by its program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import dot_product_attention, masks, window_attention
from attnlab.bench.chains import longest_chain
from attnlab.bench.memory import analyze
from attnlab.bench.operations import count
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from attnlab.ops import routes
from attnlab.scores import Dot
from experiments.tables import verdicts

__all__ = ["Exponents", "Growth", "bytes_between"]

# Each size grows from here, the others as they are: n tokens, width d, kernels of k tokens, r
# neighbors, R hash rounds, chunks of c slots.
_BASE = {"n": 4096, "d": 64, "k": 4, "r": 512, "R": 4, "c": 64}
_LONG = {"n": 2**15}  # for memory, multiplied by 8: what does not grow with it is a small part then

_Program = tuple[Callable[..., Any], list[Any]]  # a function and shapes of its arguments


class Exponents:
    """What is found of the exponents with which something grows, beside the paper's."""

    exponents: tuple[tuple[str, float], ...]

    def written(self, values: Mapping[str, float]) -> str:
        """The exponents behind their sizes."""
        return " ".join(f"{size}^{values[size]:.2f}" for size, _ in self.exponents)

    def verdict(self, paper: str, values: Mapping[str, float]) -> str:
        """The verdict on measured exponents; the paper's words are those of `self.exponents`."""
        del paper
        return verdicts.of_exponents(dict(self.exponents), values)


@dataclasses.dataclass(frozen=True)
class Growth(Exponents):
    """The exponents with which a layer's work or memory grows.

    Attributes:
      layer: name of the layer: "self_attention", "blockwise", "recurrent", "convolutional",
        "restricted" or "lsh".
      work: kind of work: "products", floating-point operations of matrix products in the traced
        program, or "sequential", the longest chain of them; or "memory", bytes that the compiled
        program takes beside its inputs and outputs, backward pass included.
      exponents: exponents of the paper, in pairs of a size and a number.
    """

    layer: str
    work: str
    exponents: tuple[tuple[str, float], ...]

    def measure(self) -> dict[str, float]:
        """The logs of what the work grows by when a size grows by a factor, to its base."""
        base, times = (_BASE | _LONG, 8) if self.work == "memory" else (_BASE, 2)
        once = self._work(base)
        return {
            size: math.log(self._work(base | {size: times * base[size]}) / once, times)
            for size, _ in self.exponents
        }

    def _work(self, sizes: Mapping[str, int]) -> float:
        function, shapes = _LAYERS[self.layer](**sizes)
        if self.work == "memory":
            return bytes_between(function, shapes)
        if self.work == "sequential":
            return longest_chain(function, *shapes)
        return count(function, *shapes).products


def bytes_between(function: Callable[..., jax.Array], shapes: Sequence[Any]) -> float:
    """The memory of a function with its backward pass, beside its inputs and outputs, compiled."""

    def with_gradients(*arguments: Any) -> Any:
        out, backward = jax.vjp(function, *arguments)
        return backward(out)

    lowered = jax.jit(with_gradients).lower(*shapes)
    return analyze(lowered, lowered.compile(), jax.default_backend()).temporary_bytes


def _heads(n: int, d: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, n, 1, d), jnp.float32)


def _module(module: nn.Module, n: int, d: int) -> _Program:
    x = jax.ShapeDtypeStruct((1, n, d), jnp.float32)
    return module.apply, [jax.eval_shape(module.init, jax.random.key(0), x), x]


def _self_attention(implementation: str) -> Callable[..., _Program]:
    def program(*, n: int, d: int, **_: int) -> _Program:
        def attend(x):
            return dot_product_attention(x, x, x, implementation=implementation)

        return attend, [_heads(n, d)]

    return program


def _restricted(*, n: int, d: int, r: int, **_: int) -> _Program:
    return lambda x: window_attention(x, x, x, window=(r // 2, r // 2)), [_heads(n, d)]


def _lsh(*, n: int, d: int, R: int, c: int, **_: int) -> _Program:  # as in the paper
    route = routes.LSH(num_hashes=R, chunk_size=c, implementation="sorted")
    return lambda x: route(Dot(), x, x, x, mask=masks.Causal()), [_heads(n, d)]


_LAYERS: dict[str, Callable[..., _Program]] = {
    "self_attention": _self_attention("dense"),
    "blockwise": _self_attention("blockwise"),
    "recurrent": lambda *, n, d, **_: _module(Recurrent(cell=TanhCell, features=d), n, d),
    "convolutional": lambda *, n, d, k, **_: _module(nn.Conv(d, (k,)), n, d),
    "restricted": _restricted,
    "lsh": _lsh,
}
