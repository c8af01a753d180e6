"""Pictures of attention: which pairs are seen, and how strongly."""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.biases import Bias, as_bias
from attnlab.core.checks import as_size, require, require_instance
from attnlab.ops.attention import attention_weights
from attnlab.ops.routes import AllPairs, Route
from attnlab.runs.palette import FILL
from attnlab.scores import Dot, Score

_CELL = 8  # pixels of a pair, so that no viewer smooths one into the next
_COLORS = ["#d6e8f2", "#0072B2", "#00263d"]  # little, more, most


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure that a notebook shows as SVG.

    Attributes:
      figure: matplotlib Figure, with `savefig` for PDF and other formats.
    """

    figure: Any

    def _repr_svg_(self) -> str:
        from attnlab.runs import figure_files

        with figure_files.style(), io.StringIO() as file:
            self.figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
            return file.getvalue()


def draw(
    *,
    score: Score | nn.Module | None = None,
    mask: masks.Mask | ArrayLike | None = None,
    route: Route | None = None,
    bias: Bias | nn.Module | ArrayLike | None = None,
    attention: Callable[..., Any] | nn.Module | None = None,
    length: int = 32,
) -> Drawing:
    """Draws the pairs of queries (rows) and keys (columns), a panel for each part that is given.

    A mask and a route show their pairs, a score its weights over all pairs, a bias its numbers. Of
    several parts a last panel shows the weights together. Darker is more, gray is no weight.

    An attention that says no weights is probed: the key and the value of each position, or the
    input of a module, are replaced in turn, and the panel shows how far each output moves (root of
    the mean square), on a log scale down to a millionth of the farthest. Gray does not move by a
    bit: what leaks under a causal mask is seen.

    Queries and keys are an example, the same in every drawing: `length` tokens of 8 kinds in random
    order, each a vector of 16 numbers near those of its kind. So the score is high within a kind,
    and hashing finds such pairs. Of batches and heads the first is drawn.

    Args:
      score: a value of `attnlab.scores` with parameters for 16 numbers, or a module that makes one,
        such as `AdditiveScore()`, with its first parameters.
      mask: any mask, or a boolean array that broadcasts to [*B, N, length, length].
      route: a value of `attnlab.routes`.
      bias: a bias, an array, or a module that makes a bias, such as `AlibiBias()`, for 8 heads.
      attention: function (q, k, v, *, mask) of [*B, length, N, 16] that returns the context, or a
        module with the call of `MultiHeadAttention`, with its first parameters; alone or with a
        mask, which it is given.
      length: number of queries and of keys.

    Returns:
      A `Drawing`: a notebook shows it, and its `figure` is matplotlib's.

    Raises:
      ValueError: no part is given, one is of another kind, or an attention has other parts beside
        it.
      ImportError: matplotlib is not installed.

    Example:
      >>> len(draw(mask=masks.Causal(), bias=jnp.zeros((32, 32))).figure.axes)
      3
    """
    length = as_size("length", length)
    mask = masks.as_mask(mask)
    if attention is None:
        panels = _panels(score, mask, route, bias, length)
        require(bool(panels), "draw takes a score, a mask, a route or a bias; got none of them")
    else:
        require(
            score is None and route is None and bias is None,
            "an attention has its own score, route and bias; got another beside it (leave it out)",
        )
        panels = {"attention": _moves(attention, mask, length)}
    return Drawing(_figure(panels))


def draw_moves(moves: np.ndarray) -> Drawing:
    """Draws how far each output (row) moves with each input (column), as `draw` has it.

    Args:
      moves: numbers [T, T]; 0 is gray.
    """
    return Drawing(_figure({"attention": moves}))


def _panels(score, mask, route, bias, length) -> dict[str, np.ndarray]:
    """[length, length] of each part: booleans of pairs, or numbers."""
    fits = route is None or isinstance(route, Route)
    require_instance("route", route, fits, "a value of attnlab.routes, such as routes.Window(4, 0)")
    if isinstance(bias, nn.Module):
        bias = bias.init_with_output(jax.random.key(0), 8, length, length)[0]
    bias = as_bias(bias)
    shown = None if mask is None else mask.as_array(length, length)  # [*B, 1 or N, T, S]
    added = None if bias is None else bias.as_array(length, length)
    leading = [x.shape[:-2] for x in (shown, added) if x is not None]
    q, k = _example(length, jnp.broadcast_shapes((1, 1), *leading))
    if isinstance(score, nn.Module):
        score = score.init_with_output(jax.random.key(0), q, k)[0]

    panels = {}
    if score is not None:
        panels["score"] = attention_weights(score, q, k)
    if shown is not None:
        panels["mask"] = shown
    if added is not None:
        panels["bias"] = jnp.broadcast_to(added, (*added.shape[:-2], length, length))
    if route is not None:
        panels["route"] = _weights(route, Dot(), q, k) > 0
    if len(panels) > 1:
        score, route = Dot() if score is None else score, AllPairs() if route is None else route
        panels["together"] = _weights(route, score, q, k, mask=mask, bias=bias)
    return {name: np.asarray(x).reshape(-1, length, length)[0] for name, x in panels.items()}


def _moves(attention: Callable[..., Any], mask: masks.Mask | None, length: int) -> np.ndarray:
    """How far output i moves with what is at position j: [length, length]."""
    leading = () if mask is None else mask.as_array(length, length).shape[:-2]
    leading = jnp.broadcast_shapes((1, 1), leading)
    q, k = _example(length, leading)
    options: dict[str, Any] = {} if mask is None else {"mask": mask}
    inputs: tuple[jax.Array, ...]
    if isinstance(attention, nn.Module):
        inputs = (q[..., 0, :],)  # [*B, length, 16]
        if "deterministic" in inspect.signature(attention).parameters:
            options["deterministic"] = True
        variables = attention.init(jax.random.key(0), *inputs, **options)
        outputs = jax.jit(lambda x: attention.apply(variables, x, **options))
    else:
        inputs = (k, k)  # [*B, length, N, 16]
        outputs = jax.jit(lambda k, v: attention(q, k, v, **options))

    def rows(*inputs: jax.Array) -> np.ndarray:
        """The outputs of the first example, [length, width]."""
        return np.asarray(outputs(*inputs), float).reshape(math.prod(leading[:-1]), length, -1)[0]

    columns, whole = [], rows(*inputs)
    for j in range(length):
        here = (*(slice(None) for _ in leading[:-1]), j)
        changed = (x.at[here].set(jnp.roll(x[here], 1, -1)) for x in inputs)
        columns.append(rows(*changed) - whole)
    return np.sqrt(np.mean(np.square(columns), -1)).T


def _weights(route: Route, score: Score, q: jax.Array, k: jax.Array, **options: Any) -> jax.Array:
    how_to_hash = {"hash_inputs": q, "center": jnp.zeros(q.shape[-2:])}
    options |= {name: x for name, x in how_to_hash.items() if name in route.hash_keywords}
    return jax.jit(route.weights)(score, q, q if route.shares_qk else k, **options)


def _example(length: int, leading: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Queries and keys [*B, length, N, 16], the same for all examples and heads."""
    draws = np.random.default_rng(0)
    tokens = draws.normal(size=(8, 16))[draws.integers(8, size=length)]
    q_and_k = (tokens + draws.normal(size=(2, *tokens.shape)) / 4).astype(np.float32)
    shape = (*leading[:-1], length, leading[-1], tokens.shape[-1])
    q, k = q_and_k[:, :, None]
    return jnp.broadcast_to(q, shape), jnp.broadcast_to(k, shape)


def _figure(panels: dict[str, np.ndarray]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure

    from attnlab.runs import figure_files

    colors = LinearSegmentedColormap.from_list("pairs", _COLORS).with_extremes(bad=FILL)
    with figure_files.style():
        width = 2.6 * len(panels) + ("attention" in panels)  # a bar of colors
        figure = Figure(figsize=(width, 2.7), layout="constrained")
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, x) in zip(row, panels.items(), strict=True):
            shown = x if name == "bias" else np.where(x > 0, x, np.nan)
            limits: dict[str, Any] = (
                {} if name == "bias" else {"vmin": 0, "vmax": 2 if x.dtype == bool else None}
            )
            if name == "attention":  # how far an output moves
                farthest = np.max(x) or 1.0
                limits = {"norm": LogNorm(farthest * 1e-6, farthest)}
            ends = 0, len(x) - 1
            drawn = axes.imshow(
                np.kron(shown, np.ones((_CELL, _CELL))),
                colors,
                extent=(-0.5, len(x) - 0.5, len(x) - 0.5, -0.5),
                interpolation="none",
                **limits,
            )
            axes.set(title=name, xlabel="key", ylabel="query", xticks=ends, yticks=ends)
            axes.spines[:].set_visible(False)
            if name == "attention":
                figure.colorbar(drawn, ax=axes, shrink=0.8, label="moves by")
    return figure
