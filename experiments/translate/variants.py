"""Models with other sizes than their recipe's, as `--set=MODEL.FIELD=VALUE,…` asks for them."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.devices.platforms import Platform, compiling_for
from attnlab.mechanisms.own import split_outside_brackets
from attnlab.runs.errors import Invalid
from experiments.translate.models import CLASSES, build

_PLAIN = (bool, int, float, str)
_OTHERS = ("parent", "name", "vocab_size", "source_vocab_size", "target_vocab_size")
_SWITCH = {"true": True, "false": False}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model, and fields of its class with other values than its recipe's."""

    model: str
    changed: tuple[tuple[str, Any], ...] = ()

    @property
    def changes(self) -> str:
        """The changed fields, for a reader."""
        return ", ".join(f"{field}={value}" for field, value in self.changed)


def variants(models: Sequence[str], asked: Sequence[str]) -> list[Variant]:
    """Every model, once for each combination of the values that --set gives it.

    Raises:
      Invalid: a model, field or value is not valid; the message names those that are.
    """
    values: dict[str, dict[str, list[Any]]] = {model: {} for model in models}
    for text in asked:
        target, equals, listed = text.partition("=")
        model, dot, field = target.partition(".")
        if not (equals and dot):
            raise Invalid(f"--set={text}: write MODEL.FIELD=VALUE, as luong.score=dot,concat")
        if model not in values:
            raise Invalid(f"--set={text}: no {model!r} is trained; valid: {', '.join(models)}")
        fields = _fields(model)
        if field not in fields:
            raise Invalid(f"--set={text}: {model} has no {field!r}; valid: {', '.join(fields)}")
        if field in values[model]:
            raise Invalid(f"--set={text}: {target} is set already; give all values in one list")
        values[model][field] = _values(text, split_outside_brackets(listed, ","), fields[field])
    return [
        Variant(model, tuple(zip(given, chosen, strict=True)))
        for model, given in values.items()
        for chosen in itertools.product(*given.values())
    ]


def _values(text: str, listed: Sequence[str], wanted: _Type) -> list[Any]:
    """The values that a --set lists; each may come once."""
    values = []
    for written in listed:
        try:
            values.append(wanted.read(written))
        except ValueError:
            raise Invalid(f"--set={text}: no {written!r}; give {wanted}") from None
    if len(set(values)) < len(values):
        raise Invalid(f"--set={text}: give each value once")
    return values


def require_fits(variant: Variant, sizes: Mapping[str, Any], length: int) -> None:
    """Traces a variant without compiling it, to see whether its model accepts sizes and length.

    Args:
      variant: model and its changed fields.
      sizes: all fields of the model that a recipe has.
      length: number of tokens of the longest source or target.

    Raises:
      Invalid: the model refuses them.
    """
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    try:
        model = build(
            variant.model, sizes, source_vocab_size=9, target_vocab_size=9, dtype="float32"
        )
        with compiling_for(Platform("cpu")):  # no process may ask for a device before it joins
            jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0), tokens, tokens)
    except (TypeError, ValueError, NotImplementedError, ZeroDivisionError) as error:
        given = " ".join(f"--set={variant.model}.{field}={x}" for field, x in variant.changed)
        raise Invalid(f"{given}: {error}") from None


class _Type(NamedTuple):
    """What --set can give a field."""

    of: type
    or_none: bool

    def read(self, written: str) -> Any:
        """The value that is written.

        Raises:
          ValueError: it is of another type.
        """
        if self.or_none and written == "none":
            return None
        if self.of is bool and written not in _SWITCH:
            raise ValueError(written)
        value = _SWITCH[written] if self.of is bool else self.of(written)
        # JAX has no larger numbers
        if value == "" or (self.of in (int, float) and not abs(value) < 2**31):
            raise ValueError(written)
        return value

    def __str__(self) -> str:
        words = {bool: "true or false", int: "whole numbers", float: "numbers", str: "words"}
        return f"{words[self.of]} or none" if self.or_none else words[self.of]


def _fields(model: str) -> dict[str, _Type]:
    """The type of each field that --set can give."""
    hints = typing.get_type_hints(CLASSES[model])
    found = {}
    for field in dataclasses.fields(CLASSES[model]):
        hint = hints[field.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = [part for part in parts if part in _PLAIN]
        if plain and field.name not in _OTHERS:
            found[field.name] = _Type(plain[0], types.NoneType in parts)
    return found | ({"attention": _Type(str, False)} if model == "transformer" else {})
