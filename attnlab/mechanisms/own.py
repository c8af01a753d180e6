"""Attention of your own, by its name in a file: "mine.py:Decay(rate=0.9)" or "package.module:X".

Wherever a program takes an attention it takes such a name (`mechanisms.attentions`). What is
named is one of these, or a class that makes one, with the arguments in brackets:

| kind       | what it is                                                                       |
| ---------- | -------------------------------------------------------------------------------- |
| "score"    | a value of `attnlab.scores`, or a `ScoreModule`, which makes one                 |
| "mask"     | a value of `attnlab.masks`                                                       |
| "bias"     | a `BiasModule`, which makes one                                                  |
| "route"    | a value of `attnlab.routes`                                                      |
| "function" | `function(q, k, v, *, mask)` → the context, as `routes.Function` has it          |
| "module"   | any other module, with the call of `MultiHeadAttention`; its fields that one has |
|            | too, such as num_heads, are those of the layer, but for route and score, and for |
|            | those that a module which is made already has set                                |

A file is imported when it is first asked for, by processes that must not touch an accelerator too:
make no arrays at its top.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax

from attnlab.devices.platforms import Platform, compiling_for
from attnlab.masks import Mask
from attnlab.modules.biases import BiasModule
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.modules.scores import ScoreModule
from attnlab.ops.routes import AllPairs, Function, Masked, Route, SamplingRoute
from attnlab.runs.errors import Invalid, Stopped, one_line
from attnlab.scores import Score

__all__ = [
    "FORM",
    "Own",
    "as_own",
    "digests",
    "find",
    "is_own",
    "load",
    "mentions_own",
    "require_unchanged",
    "split_outside_brackets",
]

#: The form of a name, for errors and help.
FORM = "FILE.py:NAME or PACKAGE.MODULE:NAME, attention of your own, NAME(rate=0.9) with arguments"
_NAME = re.compile(r"(?P<place>.+\.py(?=:|$)|\w+(\.\w+)+(?=:)):?(?P<what>([A-Za-z_]\w*(\(.*\))?)?)")
#: Kinds by class; the first that fits counts.
_KINDS: dict[type, str] = {
    Score: "score",
    ScoreModule: "score",
    Mask: "mask",
    BiasModule: "bias",
    nn.Module: "module",
    Route: "route",
}
_PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "score": lambda score: {"route": AllPairs(), "score": score},
    "mask": lambda mask: {"route": Masked(mask)},
    "bias": lambda bias: {"route": AllPairs(), "position_bias": bias},
    "route": lambda route: {"route": route},
    "function": lambda function: {"route": Function(function)},
    "module": lambda module: {},
}
_ITS_OWN = {"parent", "name", "route", "score"}  # fields that a module is not given
_GIVEN = {f.name for f in dataclasses.fields(MultiHeadAttention)} - _ITS_OWN


@dataclasses.dataclass(frozen=True, eq=False)
class Own:
    """A mechanism of a user. Two are equal if they are one object.

    Attributes:
      name: name, as it is typed.
      kind: kind: "score", "mask", "bias", "route", "function" or "module".
      value: the value; of a class of modules an example.
      title: first line of its docstring, or its name.
      file: path of the file it is from; None = of an interactive session.
      digest: SHA-256 of that file, or "".
      make: function of a `MultiHeadAttention` that makes the "module" in its place; None of other
        kinds.
    """

    name: str
    kind: str
    value: Any
    title: str
    file: str | None = None
    digest: str = ""
    make: Callable[[MultiHeadAttention], nn.Module] | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """The fields of a `MultiHeadAttention` that has it; none of a "module"."""
        return _PARTS[self.kind](self.value)

    @property
    def draws(self) -> str:
        """The random numbers that training draws beside dropout's, a stream of Flax; "" = none."""
        route = self.parts.get("route", getattr(self.value, "route", None))
        if isinstance(route, SamplingRoute):
            return "sample"
        return "hash" if route is not None and "hash_key" in route.hash_keywords else ""

    def in_place_of(self, module: MultiHeadAttention) -> nn.Module:
        """The module with this mechanism, or what stands in its place.

        Raises:
          Invalid: the module knows its positions, and what stands in its place does not.
        """
        if self.make is None:
            return module.clone(**self.parts, parent=None)
        made = self.make(module)
        for field in ("rotary", "position_bias"):
            if getattr(module, field) and not getattr(made, field, None):
                raise Invalid(
                    f"{self.name} has no {field}, so it would know no positions here; give it that"
                    " of the layer, or other positions, such as learned"
                )
        return made

    def require_fits(
        self, module: MultiHeadAttention, length: int, mask: Callable[[], Mask | None]
    ) -> None:
        """Refuses what cannot be the self-attention of a layer; traced only, on no device.

        Args:
          module: module in whose place it is.
          length: number of tokens.
          mask: function that makes the mask of the layer.

        Raises:
          Invalid: it fails, after its traceback, or returns no states of the layer.
        """
        made: Any = self.in_place_of(module)
        x = jax.ShapeDtypeStruct((2, length, module.out_features), module.dtype or "float32")

        def layer(key, x):
            keys = dict.fromkeys(("params", "dropout", "hash", "sample"), key)
            return made.init_with_output(keys, x, mask=mask(), deterministic=False)[0]

        try:
            with compiling_for(Platform("cpu")):
                y: Any = jax.eval_shape(layer, jax.eval_shape(jax.random.key, 0), x)
        except Exception as error:  # whatever a user's code raises is said to the user
            if traceback.extract_tb(error.__traceback__)[-1].name not in ("require", "fit"):
                traceback.print_exc()
            raise Invalid(f"{self.name} fails in a layer: {one_line(error)}") from None
        got = (getattr(y, "shape", type(y).__name__), getattr(y, "dtype", ""))
        if got != (x.shape, x.dtype):
            raise Invalid(
                f"{self.name} must return what it is called with, {x.dtype} {x.shape}; got"
                f" {got[1]} {got[0]}"
            )


_loaded: dict[str, Own] = {}


def is_own(name: str) -> bool:
    """Whether a name is of the form of a user's mechanism.

    >>> is_own("mine.py:Decay"), is_own("flax.linen:relu"), is_own("exact:dense")
    (True, True, False)
    >>> is_own("mine.py")  # so that `load` says what is in it
    True
    """
    return _NAME.fullmatch(name) is not None


def mentions_own(text: str) -> bool:
    """Whether a text has the name of a user's mechanism in it.

    >>> mentions_own("reversible-window-4+flax.linen:relu"), mentions_own("heads=1.5, exact:dense")
    (True, False)
    """
    return _NAME.search(text) is not None


@functools.cache
def load(name: str) -> Own:
    """The mechanism of a name; the same object each time.

    Args:
      name: "FILE.py:NAME" or "PACKAGE.MODULE:NAME", with literals as arguments in brackets.

    Raises:
      Invalid: the file is not there or cannot be imported, its traceback being printed; nothing in
        it has that name; the arguments do not fit; or what is named is no mechanism.
    """
    module, found, args, keywords = _find(name)
    try:
        own = as_own(found, *args, **keywords)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None
    file = getattr(module, "__file__", None)
    _loaded[name] = dataclasses.replace(own, name=name, file=file, digest=_digest(file))
    return _loaded[name]


@functools.cache
def find(name: str) -> Any:
    """What a name names, whatever it is: of a class with no more to say an instance.

    Args:
      name: "FILE.py:NAME" or "PACKAGE.MODULE:NAME", with literals as arguments in brackets.

    Raises:
      Invalid: it is not there, or cannot be made of the arguments; as `load` says it.
    """
    module, found, args, keywords = _find(name)
    try:
        if inspect.isclass(found):
            found = found(*args, **keywords)
        elif args or keywords:
            found = functools.partial(found, *args, **keywords)
    except Exception as error:  # whatever a user's class raises is said to the user
        raise Invalid(f"{name} cannot be made: {one_line(error)}") from None
    file = getattr(module, "__file__", None)
    _loaded[name] = Own(name, "found", found, name, file, _digest(file))
    return found


def _find(name: str) -> tuple[ModuleType, Any, list[Any], dict[str, Any]]:
    """The module of a name, what it names there, and the arguments in brackets."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise Invalid(f"{name!r} names no attention of your own; give {FORM}")
    module = _module(match["place"])
    what, brackets, arguments = match["what"].partition("(")
    found = getattr(module, what, None)
    if found is None:
        called = f"called {what}" if what else f"named; give {match['place']}:NAME"
        raise Invalid(f"{name}: nothing there is {called}; there are: {_list_names(module)}")
    args, keywords = _literals(name, what + brackets + arguments) if brackets else ([], {})
    return module, found, args, keywords


def as_own(found: Any, *args: Any, **keywords: Any) -> Own:
    """A mechanism from what a user wrote: a value, a class, a function, with arguments.

    Raises:
      Invalid: it is no mechanism, or the arguments do not fit; one line.
    """
    if (args or keywords) and (_is_made(found) or not callable(found)):
        raise Invalid(f"{type(found).__name__} is made already; leave the arguments out")
    try:
        if args or keywords:
            keywords = _by_name(inspect.signature(found), args, keywords)
        value: Any = found
        if inspect.isclass(found):
            value = _make(found, keywords, MultiHeadAttention(num_heads=2))
        elif keywords:
            value = functools.partial(found, **keywords)
    except Exception as error:  # whatever a user's class raises is said to the user
        raise Invalid(f"it cannot be made of these arguments: {one_line(error)}") from None
    kind = _kind(value)
    make: Callable[[MultiHeadAttention], nn.Module] | None = None
    if kind == "function":
        try:
            parameters = inspect.signature(value).parameters
        except ValueError as error:  # of a builtin
            raise Invalid(f"{error}; write a function (q, k, v, *, mask) around it") from None
        masked = ("mask",) if "mask" in parameters else ()
        _require_call(value, ("q", "k", "v"), masked)
        if value is not found:
            value.__name__ = found.__name__
    elif kind == "module":
        remedy = "; the module of a score inherits ScoreModule, that of a bias BiasModule"
        keywords_of_call = ("mask", "deterministic", "decode")
        _require_call(value, ("query", "key", "value"), keywords_of_call, remedy)
        make = functools.partial(_make, found, keywords)
    name = getattr(found, "__name__", type(found).__name__)
    return Own(name, kind, value, _title(found), make=make)


def _make(found: Any, keywords: dict[str, Any], layer: MultiHeadAttention) -> Any:
    """What a class makes for a layer, or another one of a module that is made already.

    A module of attention has the fields of the layer that it has too; one that is made already
    keeps those that are neither their defaults nor None.
    """
    makes = inspect.isclass(found)
    kind = found if makes else type(found)
    taken: dict[str, Any] = {}
    if issubclass(kind, nn.Module) and not issubclass(kind, (ScoreModule, BiasModule)):
        taken = {
            field.name: getattr(layer, field.name)
            for field in dataclasses.fields(kind)
            if field.name in _GIVEN
            and (makes or getattr(found, field.name) in (field.default, None))
        }
    if not makes:
        return found.clone(**taken, parent=None)
    if issubclass(kind, nn.Module):
        taken["parent"] = None
    return found(**{**taken, **keywords})


def _by_name(signature: inspect.Signature, args: Any, keywords: Any) -> dict[str, Any]:
    """All arguments by their names, those of a `**options` too."""
    bound = dict(signature.bind_partial(*args, **keywords).arguments)
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            bound |= bound.pop(one.name, {})
        if one.kind is one.VAR_POSITIONAL and bound.pop(one.name, ()):
            raise TypeError(f"*{one.name} has no names; give the arguments by name")
    return bound


def digests(text: str | None = None) -> dict[str, str]:
    """The digests of the files of the mechanisms that were loaded, or of those named in a text."""

    def is_named(name: str) -> bool:
        return bool(re.search(rf"(?<![\w./]){re.escape(name)}(?![\w(.])", text or ""))

    named = [name for name in sorted(_loaded) if text is None or is_named(name)]
    return {name: _loaded[name].digest for name in named}


def require_unchanged() -> None:
    """Refuses to go on with files that are others by now than when they were loaded.

    Raises:
      Stopped: a file was changed; one line.
    """
    for mine in _loaded.values():
        if mine.file is None:
            continue
        if not Path(mine.file).exists():
            raise Stopped(f"{mine.file} is gone, after it was read; start a new run")
        if _digest(mine.file) != mine.digest:
            raise Stopped(f"{mine.file} was changed after it was read; start a new run")


def split_outside_brackets(text: str, mark: str) -> list[str]:
    """The parts of a text between the marks that are in no brackets, nor quoted.

    >>> split_outside_brackets("a+mine.py:B(c=1e+3, d='(')+e", "+")
    ['a', "mine.py:B(c=1e+3, d='(')", 'e']
    """
    parts, depth = [""], 0
    for piece in re.findall(r"'[^']*'|\"[^\"]*\"|.", text, re.DOTALL):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _is_made(found: Any) -> bool:
    """Whether it is a value; a class may have all members of one."""
    return isinstance(found, tuple(_KINDS)) and not inspect.isclass(found)


def _kind(value: Any) -> str:
    """What a mechanism is, of the table above."""
    for base, kind in _KINDS.items():
        if isinstance(value, base):
            return kind
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return "function"
    raise Invalid(
        f"{type(value).__name__} is no attention; give a score, a mask, a module of a bias, a route"
        " (inherit routes.Exact), a function (q, k, v, *, mask) or a module of attention"
    )


def _require_call(
    found: Callable[..., Any], args: Sequence[str], keywords: Sequence[str], remedy: str = ""
) -> None:
    try:
        inspect.signature(found).bind(*args, **dict.fromkeys(keywords))
    except TypeError as error:
        call = ", ".join([*args, *(f"{name}=" for name in keywords)])
        raise Invalid(f"it is called with {call}; {error}{remedy}") from None


@functools.cache
def _module(place: str) -> ModuleType:
    """The module of a file or of a dotted name."""
    path = Path(place).resolve()
    if place.endswith(".py"):
        if not path.is_file():
            raise Invalid(f"{place}: there is no such file")
        _require_neighbors(path.parent)
    try:
        if not place.endswith(".py"):
            return pkgutil.resolve_name(place)  # attnlab.routes is an attribute
        if str(path.parent) not in sys.path:  # what it imports may be beside it
            sys.path.append(str(path.parent))
        folder = hashlib.sha256(str(path.parent).encode()).hexdigest()[:8]  # of two mine.py
        spec = importlib.util.spec_from_file_location(f"own_{path.stem}_{folder}", path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # whatever a user's file raises is said to the user
        traceback.print_exc()
        raise Invalid(f"{place} cannot be imported: {one_line(error)}") from None


def _require_neighbors(folder: Path) -> None:
    """Refuses a file where what it imports from beside it would be that of another folder."""
    others = {Path(own.file).parent for own in _loaded.values() if own.file} - {folder}
    for module in list(sys.modules.values()):
        theirs = Path(getattr(module, "__file__", None) or "")
        mine = folder / theirs.name
        is_other = theirs.parent in others and module.__name__ == theirs.stem
        if is_other and mine.is_file() and _digest(str(mine)) != _digest(str(theirs)):
            raise Invalid(f"{mine} cannot be imported beside {theirs}, of one name; rename one")


def _list_names(module: ModuleType) -> str:
    """The public names of what a file defines, for an error."""
    names = [
        name
        for name, x in vars(module).items()
        if not name.startswith("_")
        and (_is_made(x) or getattr(x, "__module__", None) == module.__name__)
    ]
    return ", ".join(names) or "none that could be an attention"


def _literals(name: str, call: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, which are literals."""
    try:
        node = ast.parse(call, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError
        args = [ast.literal_eval(x) for x in node.args]
        return args, {x.arg or "**": ast.literal_eval(x.value) for x in node.keywords}
    except (SyntaxError, ValueError):
        raise Invalid(f"{name}: arguments are literals, such as (rate=0.9, size=4)") from None


def _title(found: Any) -> str:
    """The first line of a docstring; a dataclass without one has its signature there."""
    lines = (inspect.getdoc(found) or "").splitlines()
    name = getattr(found, "__name__", type(found).__name__)
    return name if not lines or lines[0].startswith(f"{name}(") else lines[0].rstrip(".")


def _digest(path: str | None) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
