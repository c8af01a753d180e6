"""The subject of a model's contracts: a function of tokens [B, T] that returns logits [B, T, V]."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from attnlab.mechanisms import own
from attnlab.runs.errors import Invalid, one_line
from attnlab.testing.frameworks import MASKS, as_numpy, call, find_framework, find_parameters
from attnlab.testing.hosting import VOCAB_SIZE, host
from attnlab.testing.judging import rounding

__all__ = ["LONGEST", "ROWS", "Model", "as_model", "check_logits", "draw_source"]

LONGEST = 129
#: Every block size that attention is written with has a border here, with the neighbors.
LENGTHS = (1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65, 127, 128, 129)
ROWS = 16  # examples of a call
_RULE = "must map tokens, integers [B, T], to logits [B, T, vocab_size]"


@dataclass(frozen=True, eq=False)
class Model:
    """A model of language, whose arrays are NumPy's at the border.

    Attributes:
      name: name of the model.
      code: Python that makes the model again.
      function: function of tokens in the arrays of its framework.
      framework: framework that it is written in, "jax", "torch" or "numpy".
      vocab_size: number of tokens, V.
      length: largest number of tokens that it is given.
      decode: function (cache, tokens [B, n]) that returns logits [B, n, V] and the cache; or None.
      initial: function (batch, length) that returns an empty cache; or None.
      keywords: names of its parameters.
    """

    name: str
    code: str
    function: Callable[..., Any]
    framework: str
    vocab_size: int
    length: int = LONGEST
    decode: Callable[..., Any] | None = None
    initial: Callable[..., Any] | None = None
    keywords: tuple[str, ...] = ()

    def __call__(self, tokens: Any, **named: np.ndarray) -> np.ndarray:
        """Logits [B, T, V] in float64, of tokens and of arrays for its keywords.

        Raises:
          Invalid: it raises an error, or what it returns is no such array, or is not finite.
        """
        return self._logits(self._compiled, tokens, named)

    @property
    def mask(self) -> str:
        """The name of its keyword for what is no padding, booleans [B, T]; "" = none."""
        return next((word for word in MASKS if word in self.keywords), "")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens at which it is asked."""
        return tuple(sorted({self.length, *(n for n in LENGTHS if n < self.length)}))

    def draw(self, length: int, seed: int, rows: int = ROWS) -> np.ndarray:
        """Random tokens [rows, length]."""
        shape = rows, length
        return np.random.default_rng(seed).integers(self.vocab_size, size=shape, dtype=np.int32)

    @functools.cached_property
    def measured(self) -> tuple[float, np.ndarray, float]:
        """The largest difference of two calls, the size of each token's logits, their rounding.

        The size [V] is that of each by itself, as a mask may put a token far below all others.
        """
        apart, sizes = 0.0, np.zeros(self.vocab_size)
        tokens = self.draw(min(7, self.length), 0)
        source = draw_source(self.keywords, self.vocab_size, len(tokens))
        dtype = as_numpy(call(self._compiled, self.framework, tokens, **source)).dtype
        for function, length in ((self.function, 7), (self._compiled, self.length)):
            tokens = self.draw(min(length, self.length), 0)
            first, again = self._logits(function, tokens, {}), self._logits(function, tokens, {})
            apart = max(apart, float(np.abs(again - first).max()))
            sizes = np.maximum(sizes, np.abs(first).max((0, 1)))
        return apart, np.maximum(sizes, np.median(sizes)), rounding(dtype)

    @property
    def is_random(self) -> bool:
        """Whether two calls differ by more than numbers that are summed in another order."""
        apart, sizes, unit = self.measured
        return apart > max(1e-4, 16 * unit) * sizes.min()

    @property
    def floor(self) -> np.ndarray:
        """What is equal in two calls of the same shape: noise, and 32 roundings of float32; [V]."""
        apart, sizes, _ = self.measured
        return 2 * apart + 32 * 2.0**-24 * sizes

    @property
    def tolerance(self) -> np.ndarray:
        """What is equal in calls of two shapes, whose sums are in another order; [V]."""
        apart, sizes, unit = self.measured
        return 8 * apart + max(1e-4, 16 * unit) * sizes

    @property
    def equality(self) -> str:
        """What counts as equal, in words, of the token with the least logits."""
        return (
            f"two calls differ by {self.measured[0]:.2g} at most; so numbers within"
            f" {self.floor.min():.2g} are equal, those of calls of two shapes within"
            f" {self.tolerance.min():.2g}"
        )

    def moves(self, length: int = 32, seed: int = 0) -> np.ndarray:
        """How far the logits at i move when token j is another, [T, T]: root of the mean square."""
        tokens = np.repeat(self.draw(min(length, self.length), seed, rows=1), ROWS, 0)
        length, columns = tokens.shape[1], []
        for start in range(0, length, ROWS):
            is_other = np.arange(length) == np.arange(start, start + ROWS)[:, None]
            moved = self(np.where(is_other, (tokens + 1) % self.vocab_size, tokens)) - self(tokens)
            columns.append(np.sqrt(np.mean(np.square(moved), -1)))  # [ROWS, T]
        return np.concatenate(columns)[:length].T

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return jax.jit(self.function) if self.framework == "jax" else self.function

    def _logits(self, function: Callable[..., Any], tokens: Any, named: Any) -> np.ndarray:
        tokens = np.asarray(tokens, np.int32)
        named = draw_source(self.keywords, self.vocab_size, len(tokens)) | named
        try:
            result = call(function, self.framework, tokens, **named)
        except Exception as error:  # whatever a user's code raises is its answer
            raise Invalid(
                f"{self.name} fails at {tokens.shape[1]} tokens: {one_line(error)} (if it takes"
                f" fewer, give length=)"
            ) from None
        return check_logits(self, result, tokens.shape)


def draw_source(keywords: Collection[str], vocab_size: int, rows: int) -> dict[str, np.ndarray]:
    """A source [rows, 11] for the decoder of an encoder-decoder, the same in each row; or none."""
    tokens = np.random.default_rng(0).integers(vocab_size, size=11, dtype=np.int32)
    source = {"source": np.tile(tokens, (rows, 1)), "source_mask": np.ones((rows, 11), bool)}
    return {name: x for name, x in source.items() if name in keywords}


def check_logits(model: Model, result: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a model returned of tokens of this shape, as logits in float64.

    Raises:
      Invalid: it is no array of that shape, or not finite; one line.
    """
    rule, wanted = f"{model.name} {_RULE}", (*shape, model.vocab_size)
    if not hasattr(result, "shape"):
        raise Invalid(f"{rule}; got {type(result).__name__} (return its logits alone)")
    got = tuple(result.shape)
    if got[:-1] == wanted[:-1]:
        raise_unless(got == wanted, f"{rule}; got {got} (give vocab_size={got[-1]})")
    raise_unless(got == wanted, f"{rule}, here {wanted}; got {got}")
    logits = as_numpy(result).astype(np.float64)
    if not np.isfinite(logits).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(logits))[0])
        raise Invalid(
            f"{model.name} must return finite logits; got {logits[at]} at {list(at)} of {got}"
            " (give what is before a mask of the vocabulary)"
        )
    return logits


def raise_unless(holds: bool, message: str) -> None:
    """Raises Invalid(message) unless the rule holds."""
    if not holds:
        raise Invalid(message)


def as_model(
    logits: Any,
    *,
    vocab_size: int | None = None,
    length: int = LONGEST,
    decode: Any = None,
    initial: Any = None,
) -> Model:
    """A model from a function, or its name in a file; or an attention, as a model's only layer.

    Args:
      logits: function of tokens [B, T] that returns logits [B, T, V], in JAX, torch or NumPy, or
        its name, "model.py:logits". A keyword `mask` or `attention_mask` is for the tokens that are
        no padding, booleans [B, T]; `segment_ids` for the number of each token's document. A
        decoder takes its `source`, tokens [B, S], and a `source_mask` of what is no padding there.
      vocab_size: number of tokens, V; None = `logits` is an attention, a function of q, k and v, as
        `hosting.host` takes it.
      length: largest number of tokens that it is given.
      decode: function (cache, tokens [B, n]) that returns logits [B, n, V] and the next cache, or
        its name; None = the method of this name that `logits` has, if any.
      initial: function (batch, length) that returns an empty cache for so many tokens, or its name;
        None = the method of this name.

    Raises:
      Invalid: it is no function, takes no tokens, or returns no finite logits; one line.
    """
    raise_unless(length >= 2, f"length must be at least 2; got {length}")
    raise_unless((decode is None) == (initial is None), "decode and initial belong together")
    function = _find(logits)
    name = logits if isinstance(logits, str) else _show(logits)
    raise_unless(callable(function), f"{name} {_RULE}; got {type(function).__name__}")
    options = {"vocab_size": vocab_size, "length": length, "decode": decode, "initial": initial}
    code = ", ".join(f"{key}={_show(x)}" for key, x in options.items() if x is not None)
    try:
        if vocab_size is None:
            rule = "must take q, k and v; a function of tokens wants vocab_size, --vocab_size=256"
            function, framework = host(name, function)
            vocab_size = VOCAB_SIZE
        else:
            rule = _RULE
            source = draw_source(find_parameters(function), vocab_size, 2)
            framework = find_framework(name, function, np.zeros((2, 2), np.int32), **source)
    except Invalid as error:
        raise Invalid(f"{error}; it {rule}") from None
    model = Model(
        name,
        f"as_model({_show(logits)}, {code})",
        function,
        framework,
        vocab_size,
        length,
        decode=_find(decode) or getattr(function, "decode", None),
        initial=_find(initial) or getattr(function, "initial", None),
        keywords=tuple(find_parameters(function)),
    )
    model(np.zeros((2, 2), np.int32))
    return model


def _find(given: Any) -> Any:
    return own.find(given) if isinstance(given, str) else given


def _show(x: Any) -> str:
    """Python for a name or a number; for a function what it is called where it is written."""
    return repr(x) if isinstance(x, str | int) else getattr(x, "__name__", type(x).__name__)
