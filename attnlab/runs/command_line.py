"""The command line of an experiment: a flag a field of its settings, and those that all have.

Flags are of one experiment alone, not absl's global ones, so that others may use the same names.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from absl import flags

from attnlab.runs import clusters, processes
from attnlab.runs.errors import Invalid, Stopped, of_system
from attnlab.runs.flags import Flags, command_word, flag_of, format_value, kind_of
from attnlab.runs.folder import Folder, is_begun
from attnlab.runs.interrupts import interruptible, signal_of

__all__ = ["BAD_FLAG", "command", "run", "say", "start"]

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
    errno.ETIMEDOUT,
}
CHECKS = ("words", "flags", "files")
PROCESS_FLAGS = ("distributed", "coordinator", "num_processes", "process_id")
_UNITS = {"k": 2**10, "m": 2**20}
S = TypeVar("S", bound=Flags)


def run(
    argv: list[str],
    settings: type[S],
    experiment: Callable[[S, Folder], int],
    *,
    doc: str | None,
    keeps: bool = True,
    free: Collection[str] = (),
    several: bool = False,
) -> int:
    """Parses a command line and runs what it says.

    Args:
      argv: words of the command line.
      settings: class of the settings, whose fields are the flags.
      experiment: function of the settings and the folder, which is not made yet; returns a status.
      doc: text that --help begins with.
      keeps: whether a run has a folder; without one there are no flags for it.
      free: names of the flags that may have another value in a resumed run.
      several: whether it runs in several processes; where not, they are refused.

    Returns:
      The exit status: that of the experiment; 0 after --help or --check; 2 for a command that
      cannot be meant, 1 for a run that cannot go on, each said in one line; 128 + 2 for Ctrl-C that
      the experiment does not answer.
    """
    try:
        status = _run(argv, settings, experiment, doc, keeps, free, several)
    except BaseException as error:
        if processes.count() > 1:
            traceback.print_exc()
            words = " ".join(str(error).split())
            processes.tell(f"{type(error).__name__}: {words}", 1)
            processes.leave(1)
        raise
    return processes.leave(status)


def _run(
    argv: list[str],
    settings: type[S],
    experiment: Callable[[S, Folder], int],
    doc: str | None,
    keeps: bool,
    free: Collection[str],
    several: bool,
) -> int:
    name = _name_of(argv[0])
    defined = _define_all(settings, keeps=keeps)
    folder = cluster = None
    try:
        if not _parse(defined, argv, doc):
            return 0
        asked: dict[str, Any] = {flag: defined[flag].value for flag in PROCESS_FLAGS}
        cluster = clusters.find_chosen(**asked)
        if defined.check == "words":
            return 0
        chosen, folder = _choose(name, defined, settings, free)
        if defined.check:
            return 0
        if cluster is None:
            return _begin(experiment, chosen, folder)
        if not several:
            raise Invalid(
                f"{cluster.name}: {name} runs in one process, not in {cluster.count}; start one, "
                "or give --distributed=off"
            )
        processes.join(cluster)
        with interruptible():
            try:
                return _begin(experiment, chosen, folder)
            finally:
                processes.stop_waiting()
    except (flags.Error, Invalid) as error:
        # Before they are joined, all processes of a cluster find the same.
        alike = cluster is not None and cluster.index > 0 and defined.distributed == "auto"
        if alike and processes.count() == 1:
            return BAD_FLAG
        return _complain(name, error, BAD_FLAG)
    except Stopped as error:
        return _complain(name, error, 1)
    except KeyboardInterrupt as error:
        number, words = signal_of(error), "interrupted before there was anything to keep"
        if folder is not None and folder.exists:
            words = f"{number.name}: what is done is kept in {folder.path}"
            again = shlex.quote(f"--resume={folder.path}")
            words += f"; to complete it: {again}"
        if (ended := processes.ended_by()) is not None:
            return _complain(name, processes.Said(ended.line()), ended.status)
        return _complain(name, Stopped(words), 128 + number)


def _begin(experiment: Callable[[S, Folder], int], chosen: S, folder: Folder) -> int:
    """Runs the experiment, where all processes were told the same."""
    of_each = processes.gather([chosen.as_json(), folder.resumes, str(folder.wanted)])
    other = next((i for i, process in enumerate(of_each) if process != of_each[0]), None)
    if other is not None:
        raise Invalid(
            f"process {other} was started with other flags than process 0, or does not see its "
            "folder; give all the same command, and a folder that they share"
        )
    if folder.exists:
        processes.agree(folder.claim)
    return experiment(chosen, folder)


def start(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs an experiment's `main` as this process.

    A reader that leaves (`| head`, `| tee` on a full disk) ends nothing: what is left to print goes
    nowhere. What `main` leaves to say is said here, in one line: that the disk is full, or Ctrl-C
    where there was nothing to keep.
    """
    sys.excepthook = sys.__excepthook__
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as it was during the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout, sys.stderr = _guard(sys.stdout), _guard(sys.stderr)
    try:
        sys.exit(main(sys.argv))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in _DISK:
            raise
        name = _name_of(sys.argv[0])
        print(f"{name}: {of_system(error)}; what was written is kept", file=sys.stderr)
        sys.exit(1)


class _Output(io.FileIO):
    """A standard stream whose reader may leave."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):  # said once; what is left goes nowhere
                raise
            return len(data)


def _guard(stream: Any) -> io.TextIOWrapper:
    """The stream, which says what it cannot write; None, a closed one, takes all."""
    if stream is None:  # closed, as by >&-
        return open(os.devnull, "w")
    stream.flush()
    raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    # A terminal without "×" is no reason to fail.
    return io.TextIOWrapper(raw, stream.encoding, errors="replace", line_buffering=True)


def command(name: str, kind: type[Flags], values: Mapping[str, Any]) -> str:
    """What to type for a run again: the flags that are not at their defaults.

    Args:
      name: name of the experiment.
      kind: class of its settings.
      values: settings as JSON has them.
    """
    words = ["launch/local", name]
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    given = {
        field: tuple(value) if isinstance(value, list) else value for field, value in values.items()
    }
    named: dict[str, Any] = {}
    for _ in range(2):  # a flag that differs from what others imply is named too
        implied = defaults | dict(kind.implied(named))
        named |= {field: x for field, x in given.items() if x != implied.get(field)}
    defaults |= kind.implied(named)
    for field in dataclasses.fields(kind):
        value = given.get(field.name, field.default)
        if value == defaults[field.name]:
            continue
        if flag_of(field).repeated:
            words += [f"--{field.name}={item}" for item in value]
        else:
            words.append(command_word(field.name, value))
    return shlex.join(words)


def say(line: str = "", end: str = "\n") -> None:
    """Prints at once, also into a pipe; of several processes the first does."""
    if processes.prints():
        print(line, end=end, flush=True)


def _complain(name: str, error: Exception, status: int) -> int:
    """Says why a run ends, of several processes in the first alone; returns the status."""
    line = " ".join(str(error).splitlines())
    if processes.is_first():
        print(f"{name}: {line}", file=sys.stderr)
    if not isinstance(error, processes.Said):
        processes.tell(line, status)
    return status


def _name_of(program: str) -> str:
    """What an experiment is called, from the path of its file or of its folder's `__main__`."""
    path = Path(program)
    return path.parent.name if path.stem == "__main__" else path.stem


def _define_all(settings: type[Flags], *, keeps: bool) -> flags.FlagValues:
    values = flags.FlagValues()
    define: dict[type, Callable[..., Any]] = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    kinds = kind_of(settings)
    for field in dataclasses.fields(settings):
        default, text = field.default, flag_of(field).help
        if isinstance(default, tuple):
            listed = [format_value(item) for item in default]
            several = flags.DEFINE_multi_string if flag_of(field).repeated else flags.DEFINE_list
            several(field.name, listed, text, flag_values=values)
            values[field.name].help = text  # absl adds how a flag is repeated
        else:
            define[kinds[field.name]](field.name, default, text, flag_values=values)
    _define_processes(values)
    if keeps:
        where = "Where the fresh folder of this run is made."
        flags.DEFINE_string("output_dir", "results", where, flag_values=values)
        here = (
            "The folder of this run itself: begins there, or does what is missing there. So the "
            "same command goes on when a scheduler starts it again."
        )
        flags.DEFINE_string("run_dir", None, here, flag_values=values)
        again = "The folder of an earlier run: does what is missing there, with its flags."
        flags.DEFINE_string("resume", None, again, flag_values=values)
    check = (
        "Ends after a check, as launchers make it before they submit: words, that each flag is "
        "one; flags, that they go together; files, that what they name is there."
    )
    flags.DEFINE_enum("check", None, CHECKS, check, flag_values=values)
    values["check"].help = check  # absl writes the values before it
    flags.DEFINE_bool("help", False, "Show this text.", short_name="h", flag_values=values)
    return values


def _define_processes(values: flags.FlagValues) -> None:
    """Defines the flags that say which processes make one run."""
    how = (
        "Processes of this run: auto, those of the cluster that is seen (SLURM, TPU slices, GKE, "
        "SkyPilot); off, this one alone; explicit, those that the next three flags say."
    )
    flags.DEFINE_enum("distributed", "auto", clusters.DISTRIBUTED, how, flag_values=values)
    values["distributed"].help = how  # absl writes the values before it
    address = "Address HOST:PORT of the first process."
    flags.DEFINE_string("coordinator", None, address, flag_values=values)
    count = "Number of processes."
    flags.DEFINE_integer("num_processes", None, count, lower_bound=1, flag_values=values)
    which = "Index of this process, from 0 on."
    flags.DEFINE_integer("process_id", None, which, lower_bound=0, flag_values=values)


def _parse(values: flags.FlagValues, argv: list[str], doc: str | None) -> bool:
    """Reads the command line; False if it asked for help, which is then shown."""
    rest = values(argv)[1:]
    if values.help:
        print(_help(values, doc))
        return False
    if rest:
        raise Invalid(f"{rest[0]!r} is not a flag; write --name=value")
    places = ("output_dir", "run_dir", "resume")
    given = [name for name in places if name in values and values[name].present]
    if len(given) > 1:
        both = " and ".join(f"--{name}" for name in given)
        raise Invalid(f"{both} exclude each other; drop one")
    return True


def _help(values: flags.FlagValues, doc: str | None) -> str:
    ours = [values[name] for name in values if name == values[name].name]  # not the short ones
    lines = [doc or "", "Flags:"]
    for flag in ours:
        default = "" if flag.default is None else flag.serialize().partition("=")[2]
        switch = f"--{flag.name}={default}"
        if flag.boolean:
            switch = f"--[no]{flag.name} ({'on' if flag.default else 'off'})"
        lines += [f"  {switch}", textwrap.indent(textwrap.fill(str(flag.help), 92), " " * 6)]
    return "\n".join(lines)


def _choose(
    name: str, values: flags.FlagValues, settings: type[S], free: Collection[str]
) -> tuple[S, Folder]:
    """The settings that the flags say, or a folder's own, and the folder."""
    for flag in values:
        if values[flag].present and values[flag].value in ([], ""):
            raise Invalid(f"--{flag}= is empty; give a value, or leave it out")
    kinds = kind_of(settings)
    ours = [values[field.name] for field in dataclasses.fields(settings)]
    words = {x.name: _value(x, kinds[x.name]) for x in ours if x.present}
    named = dict(words)
    for field in dataclasses.fields(settings):
        if flag_of(field).is_path and named.get(field.name):
            named[field.name] = _make_absolute(named[field.name])
    path = None
    for flag in ("run_dir", "resume"):
        given: Any = values[flag].value if flag in values else None
        if given is not None:
            path = Path(given)
            if flag == "resume" or is_begun(path):
                folder = Folder.kept(name, path, flag=flag)
                kept = _resume(folder, named, settings, free)
                if values.check != "flags":
                    kept.require_files(words)
                    kept.require_installed()
                return kept, folder
    chosen = _make(settings, {**settings.of_place(named), **settings.implied(named), **named})
    if values.check != "flags":
        chosen.require_files(words)
    chosen.check_named(named)
    if values.check != "flags":
        chosen.require_installed()
    parent = Path(values.output_dir if "output_dir" in values else "")
    return chosen, Folder.fresh(name, parent, chosen.as_json(), path=path)


def _make(settings: type[S], values: Mapping[str, Any]) -> S:
    """The settings, with what the library says of sizes that do not fit as one line."""
    try:
        return settings(**values)
    except ValueError as error:
        raise Invalid(f"{error}") from error


def _resume(folder: Folder, named: dict[str, Any], settings: type[S], free: Collection[str]) -> S:
    """A folder's settings, checked against the flags that are named."""
    try:
        kept = settings.from_json(folder.settings)
    except Invalid as error:
        raise Invalid(f"{folder.given}: {error}") from None
    if later := settings.later_than(folder.settings):
        print(
            f"{folder.path}: made before there was {', '.join(f'--{x}' for x in later)}; taken by "
            "default",
            file=sys.stderr,
        )
    for flag, value in settings.of_place(named).items():
        if value != getattr(kept, flag):
            raise Invalid(
                f"{folder.path}: this job has --{flag}={value}, and the run "
                f"{format_value(getattr(kept, flag))}; submit the job array that began it"
            )
    for flag, value in named.items():
        if flag not in free and value != getattr(kept, flag):
            raise Invalid(
                f"--{flag}={format_value(value)} differs from "
                f"{format_value(getattr(kept, flag))} in {folder.path}; a resumed run "
                "keeps its flags: leave it out, or start a new run"
            )
    changed = {name: value for name, value in named.items() if name in free}
    kept = dataclasses.replace(kept, **changed)
    kept.check_named(changed)
    folder.settings |= {name: kept.as_json()[name] for name in changed}  # those of rows to come
    return kept


def _value(flag: flags.Flag, kind: type) -> Any:
    """A flag's value, with 4k for 4096 in lists of whole numbers."""
    if not isinstance(flag.value, list):
        return flag.value
    try:
        return tuple(_parse_whole(x) if kind is int else kind(x) for x in _join(flag.value))
    except ValueError:
        what = "whole numbers, such as 0,1,2, or 4k for 4096" if kind is int else "numbers"
        raise Invalid(f"--{flag.name}={','.join(flag.value)}: give {what}") from None


def _join(items: list[str]) -> list[str]:
    """The items of a list whose commas in brackets divide nothing.

    >>> _join(["exact", "mine.py:Decay(rate=0.9", "size=4)"])
    ['exact', 'mine.py:Decay(rate=0.9,size=4)']
    """
    joined: list[str] = []
    for item in items:
        if joined and joined[-1].count("(") > joined[-1].count(")"):
            joined[-1] += f",{item}"
        else:
            joined.append(item)
    return joined


def _parse_whole(text: str) -> int:
    unit = _UNITS.get(text[-1:].lower())
    return int(text) if unit is None else int(text[:-1]) * unit


def _make_absolute(value: Any) -> Any:
    """The path of each file, which a resumed run finds from wherever it is started."""
    if isinstance(value, tuple):
        return tuple(map(_make_absolute, value))
    return str(Path(value).absolute())
