"""The command line of an experiment whose settings are a dataclass: a flag a field.

Flags are of one experiment alone, not absl's global ones, so that others may use the same names.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from absl import flags

from attnlab.records.errors import Invalid

__all__ = [
    "BAD_FLAG",
    "add_common",
    "check_seed",
    "flags_of",
    "from_plain",
    "parse",
    "refuse",
    "resumed",
    "say",
    "settings_of",
    "start",
]

BAD_FLAG = 2  # the exit status
# What a disk may do to a run that cannot go on: full, over a quota, taken away, broken.
_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.ENOENT,
    errno.EIO,
}
S = TypeVar("S")  # a dataclass of bools, numbers, strings and tuples of one of them


def flags_of(settings: Any, helps: Mapping[str, str], *, resumes: bool = False) -> flags.FlagValues:
    """A flag for each field, with its value as the default, and the common ones.

    Args:
      settings: a dataclass.
      helps: what --help says of each field.
      resumes: whether there is --resume as well.
    """
    found = flags.FlagValues()
    define: dict[type, Callable[..., Any]] = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for field in dataclasses.fields(settings):
        default, text = getattr(settings, field.name), helps[field.name]
        if isinstance(default, tuple):
            listed = [f"{one:g}" if isinstance(one, float) else str(one) for one in default]
            flags.DEFINE_list(field.name, listed, text, flag_values=found)
        else:
            define[type(default)](field.name, default, text, flag_values=found)
    if resumes:
        _define_resume(found)
    return add_common(found)


def start(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs an experiment's `main` as this process.

    To `main` a reader that leaves (`| head`) is as Ctrl-C. What it leaves to say is said here, in
    one line: that the disk is full, or Ctrl-C where there was nothing to keep.
    """
    sys.excepthook = sys.__excepthook__
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as it was during the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout, sys.stderr = _output(sys.stdout), _output(sys.stderr)
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    try:
        sys.exit(main(sys.argv))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in _DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {where}{error.strerror}; what was written is kept", file=sys.stderr)
        sys.exit(1)


class _Output(io.FileIO):
    """A standard stream whose reader may leave: then this process is asked to stop."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            signal.raise_signal(signal.SIGINT)
            return len(data)


def _output(stream: Any) -> io.TextIOWrapper:
    stream.flush()
    raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    # A terminal without "×" is no reason to fail.
    return io.TextIOWrapper(raw, stream.encoding, errors="replace", line_buffering=True)


def add_common(found: flags.FlagValues) -> flags.FlagValues:
    """Adds --output_dir and --help."""
    where = "Where the fresh folder of this run is made."
    flags.DEFINE_string("output_dir", "results", where, flag_values=found)
    flags.DEFINE_bool("help", False, "Show this text.", short_name="h", flag_values=found)
    return found


def resumed(argv: list[str]) -> str:
    """What --resume names, so that its settings can be the defaults of the other flags."""
    found = flags.FlagValues()
    _define_resume(found)
    found(argv, known_only=True)
    return found.resume


def _define_resume(found: flags.FlagValues) -> None:
    flags.DEFINE_string("resume", "", "A folder of this job, to go on in it.", flag_values=found)


def parse(found: flags.FlagValues, argv: list[str], doc: str | None) -> bool:
    """Reads the command line; False if it asked for help, which is then shown.

    Raises:
      Invalid: there is something that is not a flag, or a folder has no name, or two.
      flags.Error: a flag is unknown, or its value is not of its type.
    """
    rest = found(argv)[1:]
    if found.help:
        try:
            print(_help(found, doc))
        except KeyboardInterrupt:  # its reader has seen enough
            pass
        return False
    if rest:
        raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
    given = [name for name in ("output_dir", "resume") if name in found and found[name].present]
    for name in given:
        if not found[name].value:
            raise Invalid(f"--{name}= is empty; give a folder")
    if len(given) > 1:
        raise Invalid("--output_dir and --resume exclude each other; drop one")
    return True


def _help(found: flags.FlagValues, doc: str | None) -> str:
    ours = [found[name] for name in found if name == found[name].name]  # not the short ones
    lines = [doc or "", "Flags:"]
    for flag in ours:
        default = "" if flag.default is None else flag.serialize().partition("=")[2]
        switch = f"--{flag.name}={default}"
        if flag.boolean:
            switch = f"--[no]{flag.name} ({'on' if flag.default else 'off'})"
        lines += [f"  {switch}", textwrap.indent(textwrap.fill(str(flag.help), 92), " " * 6)]
    return "\n".join(lines)


def settings_of(found: flags.FlagValues, defaults: S) -> S:
    """The settings that the flags say.

    Args:
      found: from `flags_of`, parsed.
      defaults: what the flags were made of; the elements of lists are of the types there.

    Raises:
      Invalid: an element of a list is not of its type, or the settings refuse a value.
    """
    kind: Any = type(defaults)
    fields = dataclasses.fields(kind)
    return kind(**{f.name: _value(f.name, found[f.name].value, f.default) for f in fields})


def check_seed(seed: int) -> None:
    """Refuses a seed that JAX and grain would not take, or take for another one.

    Raises:
      Invalid: it is not from 0 to 2³¹ − 1.
    """
    if seed < 0:
        raise Invalid(f"--seed={seed}: give at least 0")
    if seed >= 2**31:
        raise Invalid(f"--seed={seed}: give less than {2**31}")


def from_plain(kind: type[S], values: Mapping[str, Any]) -> S:
    """Settings from what JSON made of them, lists becoming tuples.

    Raises:
      Invalid: they are not all there, or there are others: they are of another version.
    """
    of_kind: Any = kind
    known = {field.name for field in dataclasses.fields(of_kind)}
    parts = (("without", known - values.keys()), ("with", values.keys() - known))
    differ = " and ".join(f"{word} {', '.join(sorted(names))}" for word, names in parts if names)
    if values.keys() - known and 2 * len(known & values.keys()) < len(known):
        raise Invalid(f"settings of another experiment, {differ}; give a folder of this one")
    if differ:
        raise Invalid(f"settings of another version, {differ}; start a new run")
    for field in dataclasses.fields(of_kind):
        if isinstance(field.default, tuple) != isinstance(values[field.name], (list, tuple)):
            raise Invalid(f"settings that cannot be read: {field.name}; start a new run")
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise Invalid(f"settings that cannot be read: {error}; start a new run") from None


def _value(name: str, value: Any, default: Any) -> Any:
    if not isinstance(default, tuple):
        return value
    element = type(default[0]) if default else str
    try:
        return tuple(element(one) for one in value)
    except ValueError:
        what = "whole numbers" if element is int else "numbers"
        raise Invalid(f"--{name}={','.join(value)}: give {what}") from None


def refuse(experiment: str, error: Exception) -> int:
    """Says in one line on stderr what is wrong with the command; returns the exit status."""
    print(f"{experiment}: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return BAD_FLAG


def say(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(line, flush=True)
