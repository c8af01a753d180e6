"""Settings as a dataclass: a field is a flag, with its help, its values and what it needs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from attnlab.runs.errors import Invalid

DTYPES = ("float32", "bfloat16", "float16")
_NUMBERS = 2**31  # of JAX: whole numbers are less


@dataclasses.dataclass(frozen=True)
class Flag:
    """What a field says of its flag.

    Attributes:
      help: text that --help shows for the flag.
      choices: words it may be; of a tuple, each element.
      least: smallest number.
      most: largest number.
      above: number that it must be more than.
      below: number that it must be less than.
      is_path: whether it is a file or folder that must exist, kept as an absolute path.
      repeated: whether a tuple's flag is given once for each element, which may have commas.
      twice: whether a tuple may have a value twice also where `Flags.once` is set.
      needs: conditions without which the flag would count for nothing: "FLAG", that it is given, or
        "FLAG=VALUE", that it has the value or is a tuple with it; alternatives have " or " between
        them. They are checked where the flag is on the command line.
      not_with: conditions that exclude the flag, each as in `needs`, without alternatives.
    """

    help: str
    choices: Collection[str] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    is_path: bool = False
    repeated: bool = False
    twice: bool = False
    needs: tuple[str, ...] = ()
    not_with: tuple[str, ...] = ()


def flag(default: Any, help: str, **about: Any) -> Any:
    """A field of `Flags`.

    Args:
      default: value without the flag; None = something else decides, and `help` says what.
      help: text that --help shows for the flag.
      **about: other fields of `Flag`; `needs` and `not_with` may be one string.
    """
    for name in ("needs", "not_with"):
        if isinstance(about.get(name), str):
            about[name] = (about[name],)
    return dataclasses.field(default=default, metadata={"flag": Flag(help, **about)})


def seed_flag(help: str) -> Any:
    """A field for a seed, in the range where JAX and grain tell any two seeds apart."""
    return flag(0, help, least=0, below=2**31)


def flag_of(field: dataclasses.Field[Any]) -> Flag:
    """What a field says of its flag."""
    return field.metadata["flag"]


@dataclasses.dataclass(frozen=True)
class Flags:
    """The base of an experiment's settings; every field is made by `flag`.

    A field's type is bool, int, float or str, `TYPE | None`, or a tuple of one of them.

    Attributes:
      once: whether a tuple may have each value but once, as where each is trained with; paths and
        what is `repeated` may come again.
    """

    once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks each value by what its field says; subclasses, whether values go together.

        Raises:
          Invalid: one is not valid; the message begins with the flag.
        """
        for field in dataclasses.fields(self):
            value, about = getattr(self, field.name), flag_of(field)
            _check(field, value)
            once = self.once and not (about.is_path or about.repeated or about.twice)
            if once and isinstance(value, tuple) and len(set(value)) < len(value):
                raise Invalid(f"--{field.name}={format_value(value)}: give each once")

    @classmethod
    def implied(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Other defaults that follow from the flags on the command line.

        Args:
          named: values of the flags on the command line.
        """
        return {}

    @classmethod
    def of_place(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Other defaults that follow from where it runs, which the command of a report names.

        Args:
          named: values of the flags on the command line.
        """
        return {}

    def unmet_needs(self) -> Mapping[str, str]:
        """What flags need and do not have, in words, where no declaration can say it."""
        return {}

    def check_named(self, named: Collection[str]) -> None:
        """Refuses flags that would count for nothing.

        Args:
          named: names of the flags on the command line.

        Raises:
          Invalid: one of them needs what is not there, or excludes what is.
        """
        unmet = self.unmet_needs()
        for field in dataclasses.fields(self):
            value, about = getattr(self, field.name), flag_of(field)
            if field.name not in named or (value == field.default and not _is_given(value)):
                continue
            given = command_word(field.name, value)
            for other in filter(self._holds, about.not_with):
                name = other.partition("=")[0]
                excluded = command_word(name, getattr(self, name))
                raise Invalid(f"{given} and {excluded} exclude each other; change or drop one")
            lacking = [need for need in about.needs if not self._holds(need)]
            if lacking or field.name in unmet:
                need = unmet.get(field.name, "")
                if lacking:
                    need = f"--{lacking[0]}".replace(" or ", " or --")
                raise Invalid(f"{given}: needs {need}; without it leave --{field.name} out")

    def _holds(self, condition: str) -> bool:
        """Whether a flag is given, of "FLAG", or has a value, of "FLAG=VALUE"; or another does."""
        if " or " in condition:
            return any(map(self._holds, condition.split(" or ")))
        name, has_value, wanted = condition.partition("=")
        value = getattr(self, name)
        if not has_value:
            return _is_given(value)
        return wanted in map(str, value if isinstance(value, tuple) else (value,))

    def require_files(self, named: Mapping[str, Any]) -> None:
        """Refuses paths at which there is nothing.

        Args:
          named: values of the flags on the command line, whose paths may be relative.

        Raises:
          Invalid: there is no such file or folder.
        """
        for field in dataclasses.fields(self):
            paths = named.get(field.name, getattr(self, field.name)) or ()
            if flag_of(field).is_path:
                for path in (paths,) if isinstance(paths, str) else paths:
                    if not Path(path).exists():
                        raise Invalid(f"--{field.name}={path}: there is no such file")

    def require_installed(self) -> None:
        """Refuses what needs a package that is not here.

        Raises:
          Invalid: there is none; the message says which.
        """

    @classmethod
    def later_than(cls, values: Mapping[str, Any]) -> list[str]:
        """The flags that are not in `as_json` of an older version."""
        return [field.name for field in dataclasses.fields(cls) if field.name not in values]

    def as_json(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> typing.Self:
        """The inverse of `as_json`. A flag that came later than the values has its default.

        Raises:
          Invalid: most of the values are not there, or there are others.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        others = sorted(values.keys() - known)
        if others or 2 * len(known & values.keys()) < len(known):
            said = f", with {', '.join(others[:3])}" if others else ""
            raise Invalid(
                f"settings of another experiment or version{said}; give a folder of this one, or "
                "start a new run"
            )
        for field in dataclasses.fields(cls):
            value = values.get(field.name, field.default)
            if isinstance(field.default, tuple) != isinstance(value, list | tuple):
                raise Invalid(f"settings that cannot be read: {field.name}; start a new run")
        try:
            return build(cls, values)
        except TypeError as error:
            raise Invalid(f"settings that cannot be read: {error}; start a new run") from None


def kind_of(kind: type[Flags]) -> dict[str, type]:
    """The type of each field: bool, int, float or str, also where it may be None or is a tuple."""
    hints = typing.get_type_hints(kind)
    return {field.name: _element(hints[field.name]) for field in dataclasses.fields(kind)}


def _element(hint: Any) -> type:
    inner = [x for x in typing.get_args(hint) if x not in (types.NoneType, Ellipsis)]
    return _element(inner[0]) if inner else hint


def build(kind: Any, value: Any) -> Any:
    """A value of a type from what JSON made of it: dataclasses from objects, tuples from lists.

    Names that a dataclass does not have are passed over: a row on disk also has derived numbers.

    Raises:
      TypeError, AttributeError or KeyError: it is of another type.
    """
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.name in value.keys()]
        make: Any = kind
        return make(**{name: build(hints[name], value[name]) for name in names})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return build(next(a for a in arguments if a is not types.NoneType), value)
    if origin is tuple:
        return tuple(build(arguments[0], item) for item in value)
    return value


def format_value(value: Any) -> str:
    """A value as it is typed behind `--NAME=`.

    >>> [format_value(x) for x in ((1.0, 0.5), None, "a", 0.12345678, ("a,b", "c"))]
    ['1,0.5', '', 'a', '0.12345678', '"a,b",c']
    """
    if isinstance(value, (list, tuple)):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(map(format_value, value))
        return line.getvalue()
    if value is None:
        return ""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def command_word(name: str, value: Any) -> str:
    """A flag with its value, as on a command line.

    >>> command_word("sizes", (1, 2)), command_word("pack", True), command_word("pack", False)
    ('--sizes=1,2', '--pack', '--nopack')
    """
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={format_value(value)}"


def _is_given(value: Any) -> bool:
    """Whether a value is one, not the lack of it: 0 is, and False, None, () and "" are not."""
    return value not in ((), "", None) and value is not False


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    about, given = flag_of(field), f"--{field.name}={format_value(value)}"
    for item in value if isinstance(value, tuple) else (value,):
        if item is None:
            continue
        if about.choices and item not in about.choices:
            raise Invalid(f"{given}: no {item!r}; valid: {', '.join(about.choices)}")
        if isinstance(item, float) and not math.isfinite(item):
            raise Invalid(f"{given}: give a finite number")
        outside = _find_bound(about, item)
        if outside is not None:
            which = f": {format_value(item)}" if isinstance(value, tuple) else ""
            raise Invalid(f"{given}{which} is too {outside}")


def _find_bound(about: Flag, item: Any) -> str | None:
    """On which side of its range a value is, and what to give; None = it is in its range."""
    if about.least is not None and item < about.least:
        return f"small; give at least {about.least:g}"
    if about.most is not None and item > about.most:
        return f"large; give at most {about.most:g}"
    if about.above is not None and not item > about.above:
        return f"small; give more than {about.above:g}"
    below = _NUMBERS if about.below is None and isinstance(item, int) else about.below
    if below is not None and not item < below:
        return f"large; give less than {below:.0f}"
    return None
