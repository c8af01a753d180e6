"""What the public boundary demands of its arguments: messages of rule, got and remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp

__all__ = ["points_to", "require", "require_choice", "require_dropout", "require_qkv"]

_Target = TypeVar("_Target")


def require(holds: bool, message: str) -> None:
    """Raises ValueError(message) unless the rule holds."""
    if not holds:
        raise ValueError(message)


def require_choice(name: str, got: Any, choices: tuple[Any, ...]) -> None:
    """`got` must be one of `choices`."""
    require(got in choices, f"{name} must be one of {', '.join(map(repr, choices))}; got {got!r}")


def require_qkv(q: Any, k: Any, v: Any, *, same_width: bool = True) -> None:
    """q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D]: floats that agree, with N a multiple of K.

    Args:
      q: queries.
      k: keys.
      v: values; None where only logits are wanted.
      same_width: the score compares q and k directly, so their widths must be equal.
    """
    named = {"q": q, "k": k} | ({} if v is None else {"v": v})
    for name, x in named.items():
        require(
            x.ndim >= 3,
            f"{name} must be [*batch, length, heads, width], at least 3 axes; got {x.shape}"
            " (add an axis of 1 for a single head)",
        )
        require(
            jnp.issubdtype(x.dtype, jnp.floating),
            f"{name} must be floating point; got {x.dtype} (cast it first)",
        )
        require(min(x.shape[-3:]) > 0, f"{name} must have no axis of length 0; got {x.shape}")
    shapes = ", ".join(f"{name} {x.shape}" for name, x in named.items())
    require(
        len({x.dtype for x in named.values()}) == 1,
        "q, k and v must have one dtype; got "
        + ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        + " (cast them to one)",
    )
    require(
        len({x.shape[:-3] for x in named.values()}) == 1,
        f"q, k and v must have equal batch axes; got {shapes}",
    )
    require(
        v is None or k.shape[-3:-1] == v.shape[-3:-1],
        f"k and v must have equal length and heads; got {shapes}",
    )
    require(
        q.shape[-2] % k.shape[-2] == 0,
        f"query heads must be a multiple of key/value heads; got {shapes}",
    )
    require(
        not same_width or q.shape[-1] == k.shape[-1],
        f"q and k must have equal width for this score; got {shapes}"
        " (project them, or use the general or concat score)",
    )


def require_dropout(rate: float, key: Any) -> None:
    """A rate in [0, 1), and a key if it is above 0."""
    require(0.0 <= rate < 1.0, f"dropout_rate must be in [0, 1); got {rate}")
    require(
        rate == 0.0 or key is not None,
        f"dropout_rate={rate} needs dropout_key=jax.random.key(...); got None",
    )


def points_to(**places: str) -> Callable[[_Target], _Target]:
    """Decorates what lacks a keyword that users may expect: a TypeError says where it goes."""

    def decorate(target: Any) -> Any:
        is_class = isinstance(target, type)
        function = target.__init__ if is_class else target

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            for name in places.keys() & options.keys():
                raise TypeError(f"{target.__name__} has no keyword {name}; {places[name]}")
            return function(*args, **options)

        if not is_class:
            return checked
        target.__init__ = checked
        return target

    return decorate
