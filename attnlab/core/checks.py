"""Demands of the public boundary on its arguments: messages of rule, got and remedy."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.core.shapes import fit

_Target = TypeVar("_Target")


def require(holds: bool, message: str) -> None:
    """Raises ValueError(message) unless the rule holds."""
    if not holds:
        raise ValueError(message)


def _show(got: Any) -> str:
    """An argument as an error shows it: short, and a class as one."""
    if isinstance(got, type):
        return f"the class {got.__name__}"
    is_short = got is None or isinstance(got, str | int | float)
    return repr(got) if is_short else f"an instance of {type(got).__name__}"


def require_choice(name: str, got: Any, choices: tuple[Any, ...]) -> None:
    """`got` must be one of `choices`."""
    require(got in choices, f"{name} must be one of {', '.join(map(repr, choices))}; got {got!r}")


def require_instance(name: str, got: Any, fits: bool, wanted: str, remedy: str = "") -> None:
    """Refuses a class where an instance is wanted, and what does not fit."""
    holds = fits and not isinstance(got, type)
    require(holds, f"{name} must be {wanted}; got {_show(got)}{remedy}")


def as_array(name: str, x: Any) -> jax.Array:
    """x as an array of JAX.

    Raises:
      ValueError: x is not numbers, or has integers that JAX would cut to 32 bits without a word.
    """
    wanted = "an array of numbers"
    require_instance(name, x, not isinstance(x, str | None), wanted)
    try:
        made = jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OverflowError):
            wanted += " that JAX's integers hold"
        raise ValueError(f"{name} must be {wanted}; got {_show(x)}") from None
    of_numpy = isinstance(x, np.ndarray | np.generic)
    if of_numpy and made.dtype.itemsize < x.itemsize and x.dtype.kind in "iu":
        x = np.asarray(x)
        lost = x[x != x.astype(made.dtype)]
        rule = f"{name} must be integers that {made.dtype} holds"
        require(lost.size == 0, f"{rule}; got {lost[:1]} (number them anew)")
    return made


def is_floating(dtype: Any) -> bool:
    """Whether arrays of this dtype can be computed with: floats of 8 bits are for storage."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 16


def as_number(name: str, x: Any) -> float:
    """Python's own float of one real number of any kind.

    Raises:
      ValueError: x is another thing, infinite or NaN, or an argument of jit.
    """
    require(
        not isinstance(x, jax.core.Tracer),
        f"{name} must be known while tracing; got an argument of jit (make it static)",
    )
    try:
        number = np.asarray(x)
        numeric = number.ndim == 0 and number.dtype != bool and not isinstance(x, str)
        if numeric and math.isfinite(number):
            return float(number)
    except (TypeError, ValueError, OverflowError):
        pass  # it is no number, or larger than any float
    got = f"shape {x.shape}" if isinstance(x, jax.Array | np.ndarray) else _show(x)
    raise ValueError(f"{name} must be one finite number; got {got}")


def as_share(name: str, x: Any) -> float:
    """`as_number` of what must be in [0, 1]."""
    share = as_number(name, x)
    require(0.0 <= share <= 1.0, f"{name} must be in [0, 1]; got {share}")
    return share


def as_int(x: Any) -> int | None:
    """Python's own int of an integer of any kind; None of all else, True and False too."""
    try:
        return None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        return None


def as_size(name: str, x: Any) -> int:
    """`as_int` of what counts something.

    Raises:
      ValueError: x is no integer ≥ 1.
    """
    return as_count(f"{name} must be", x, least=1)


def require_sizes(of: Any, *names: str) -> None:
    """The attributes of these names count something; None where that is their default."""
    for name in names:
        if not _is_left_out(of, name):
            as_size(f"{type(of).__name__}.{name}", getattr(of, name))


def _is_left_out(owner: Any, name: str) -> bool:
    """Whether an attribute is None, and that by default."""
    return getattr(owner, name) is None and getattr(type(owner), name, 0) is None


def as_count(rule: str, x: Any, *, least: int = 0) -> int:
    """`as_int` of what counts something, and may count nothing.

    Args:
      rule: name of x and what it must be, up to "an int ≥ …".
      x: number of them.
      least: least number of them.

    Raises:
      ValueError: x is no integer ≥ `least`.
    """
    count = as_int(x)
    if count is None or count < least:
        raise ValueError(f"{rule} an int ≥ {least}; got {x!r}")
    return count


def require_integers(owner: Any, *names: str) -> None:
    """Fields that count or number must be integers; None where that is their default."""
    for name in names:
        if _is_left_out(owner, name):
            continue
        field = f"{type(owner).__name__}.{name}"
        got = getattr(owner, name)
        if isinstance(got, int | np.integer | np.ndarray):  # of any size
            dtype = np.asarray(got).dtype
        else:
            dtype = as_array(field, got).dtype
        remedy = "cast it"
        if dtype == jnp.bool_:
            remedy = "booleans [*B, S], True = a real token, go to masks.from_padding"
        require(
            jnp.issubdtype(dtype, jnp.integer),
            f"{field} must be integers; got dtype {dtype} ({remedy})",
        )


def as_qkv(q: Any, k: Any, v: Any, *, same_width: bool = True) -> tuple[Any, Any, Any]:
    """q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D]: floats that agree, with N a multiple of K.

    Args:
      q: queries.
      k: keys.
      v: values; None where only logits are wanted.
      same_width: whether the score compares q and k directly, so that their widths must be equal.

    Returns:
      The three as arrays.

    Raises:
      ValueError: they are other than that.
    """
    arrays = {"q": as_array("q", q), "k": as_array("k", k)}
    given = ["q: *B T N H", arrays["q"], "k: *B S K Hk", arrays["k"]]
    if v is not None:
        arrays["v"] = as_array("v", v)
        given += ["v: *B S K D", arrays["v"]]
    for name, x in arrays.items():
        require(
            is_floating(x.dtype),
            f"{name} must be floating point of 16 bits or more; got {x.dtype} (cast it first)",
        )
        require(0 not in x.shape[-3:], f"{name} must have no axis of length 0; got {x.shape}")
    require(
        len({x.dtype for x in arrays.values()}) == 1,
        "q, k and v must have one dtype; got "
        + ", ".join(f"{name} {x.dtype}" for name, x in arrays.items())
        + " (cast them to one)",
    )
    sizes = fit(*given)
    if same_width:
        remedy = "project them, or use the general or concat score"
        fit("q: *B T N H", arrays["q"], "k: *B S K H", arrays["k"], remedy=remedy)
    require(
        sizes["N"] % sizes["K"] == 0,
        f"q's heads must be a multiple of those of k and v; got {sizes['N']} and {sizes['K']}",
    )
    return arrays["q"], arrays["k"], arrays.get("v")


def require_key(name: str, key: Any) -> None:
    """`key` must be one PRNG key, new-style or raw."""
    is_array = isinstance(key, jax.Array | np.ndarray)
    typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    size = jax.eval_shape(jax.random.PRNGKey, 0).shape
    raw = is_array and key.dtype == jnp.uint32 and key.shape == size
    got = f"{key.dtype}{key.shape}" if is_array else _show(key)
    remedy = " (make it with jax.random.key(seed))"
    require(typed or raw, f"{name} must be one PRNG key; got {got}{remedy}")


def as_rate(rate: Any, name: str = "dropout_rate") -> float:
    """A dropout rate in [0, 1), a number or an array that is known while tracing, as a float."""
    rate = as_number(name, rate)
    require(0.0 <= rate < 1.0, f"{name} must be in [0, 1); got {rate}")
    return rate


def require_dropout(rate: Any, key: Any) -> float:
    """`as_rate`, and a key where it is > 0."""
    rate = as_rate(rate)
    if rate > 0.0:
        require(
            key is not None, f"dropout_rate={rate} needs dropout_key=jax.random.key(...); got None"
        )
        leaves = jax.tree.leaves(key)  # `dropout.OnePattern` holds one
        require_key("dropout_key", leaves[0] if len(leaves) == 1 else key)
    return rate


def points_to(**places: str) -> Callable[[_Target], _Target]:
    """Decorates what lacks a keyword that users may expect: a TypeError says where it goes."""

    def decorate(target: Any) -> Any:
        is_class = isinstance(target, type)
        function = target.__init__ if is_class else target

        @functools.wraps(function)
        def check(*args: Any, **options: Any) -> Any:
            for name in places.keys() & options.keys():
                raise TypeError(f"{target.__name__} has no keyword {name}; {places[name]}")
            return function(*args, **options)

        if not is_class:
            return check
        target.__init__ = check
        return target

    return decorate
