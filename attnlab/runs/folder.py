"""The folder of a run: its settings, and files of rows, on disk as they come."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from attnlab.runs.errors import Invalid, of_system

SETTINGS, ROWS, REPORT, ERRORS = "settings.json", "results.jsonl", "report.md", "errors.log"

_KINDS = "*.jsonl", "*.md", "*.csv", "*.svg"  # files of a run, beside those that begin it
_LAUNCHES = "launch.jsonl"  # which launch/shipping.py writes before a run begins

_claims: dict[Path, int] = {}  # open files of the folders that this process writes to


class Folder:
    """The folder of a run: a fresh one, which `begin` makes, or that of an earlier run.

    Of several processes the first alone makes it and writes to it; the others are told of it.

    Attributes:
      name: name of the experiment.
      settings: settings as plain values, as in settings.json.
      resumes: whether the folder is an earlier run's.
      wanted: path that was asked for: of the folder, or of the parent of a stamped one.
    """

    def __init__(
        self, name: str, wanted: Path, settings: dict[str, Any], path: Path | None, flag: str
    ):
        """Use `fresh` or `kept`."""
        if re.match(r"\w+:/", str(wanted)):  # else a folder of that name would be made here
            raise Invalid(
                f"--{flag}={str(wanted).replace(':/', '://', 1)}: give a folder; a bucket is one "
                "where it is mounted, as launch/gke, launch/sky and launch/tpu_vm do"
            )
        self.name, self.settings, self.resumes = name, settings, path is not None
        self.wanted, self._path, self._flag = wanted, path, flag

    @classmethod
    def fresh(
        cls, name: str, parent: Path, settings: dict[str, Any], *, path: Path | None = None
    ) -> Folder:
        """`path`, or `parent`/NAME-DATE-TIME; not made yet.

        Args:
          name: name of the experiment.
          parent: parent of the folder.
          settings: settings as plain values.
          path: path of the folder itself, where no run has begun; None = a stamped one.
        """
        if path is None:
            return cls(name, parent, settings, None, "output_dir")
        return cls(name, path, settings, None, "run_dir")

    @classmethod
    def kept(cls, name: str, path: Path, *, flag: str = "resume") -> Folder:
        """The folder of an earlier run.

        Args:
          name: name of the experiment.
          path: path of the folder.
          flag: name of the flag that gave the path, for what is refused.

        Raises:
          Invalid: there are no settings in it, or none that can be read.
        """
        file = path / SETTINGS
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise Invalid(
                f"--{flag}={path}: no {SETTINGS} there; give a folder that {name} made"
            ) from None
        except OSError as error:
            raise Invalid(f"--{flag}={path}: {of_system(error)}; give a folder to read") from None
        except ValueError:
            settings = None
        if not isinstance(settings, dict):
            raise Invalid(f"--{flag}={path}: {SETTINGS} cannot be read; start a new run")
        return cls(name, path, settings, path, flag)

    @property
    def exists(self) -> bool:
        """Whether it is made."""
        return self._path is not None

    @property
    def path(self) -> Path:
        """The path of the folder, which exists once `begin` was called."""
        assert self._path is not None, "a fresh folder is made by `begin`"
        return self._path

    def begin(self) -> Path:
        """Makes a fresh folder, with its settings; once. Returns its path.

        Raises:
          Invalid: the folder cannot be made.
        """
        if self._path is None:
            self._path = self._made()
        self.claim()
        return self._path

    @property
    def given(self) -> str:
        """The flag that gave the folder, for what is refused."""
        return f"--{self._flag}={self.path}"

    def join(self, path: Path) -> None:
        """Takes the path of the folder that another process of the run has begun."""
        self._path = path

    def _made(self) -> Path:
        path = self.wanted
        try:
            if self._flag == "output_dir":
                path = fresh_folder(path, self.name)
            path.mkdir(parents=True, exist_ok=True)
            self._add_settings(path)
        except OSError as error:
            above = (self.wanted, *self.wanted.parents)
            there = next(
                path for path in above if os.path.lexists(path)
            )  # also of what is forbidden
            why = error.strerror if there.is_dir() else f"{there} is no folder"
            raise Invalid(f"--{self._flag}={self.wanted}: {why}; give a folder") from None
        return path

    def _add_settings(self, path: Path) -> None:
        """Writes settings.json, which is claimed before it has its name: of two runs one does."""
        files = [file for kind in _KINDS for file in sorted(path.glob(kind))]
        own = [file for file in files if file.name != _LAUNCHES]
        if own and not is_begun(path):
            raise Invalid(
                f"--{self._flag}={path}: {own[0].name} is there, and no {SETTINGS}; give a folder "
                f"without {', '.join(_KINDS)}, which a run writes"
            )
        part = path / f"{SETTINGS}.tmp"
        file = os.open(part, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            if not _lock(file):
                raise Invalid(f"--{self._flag}={path}: a run begins there now; wait for its end")
            if is_begun(path):
                raise FileExistsError
            part.write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
            part.replace(path / SETTINGS)
        except (OSError, Invalid):
            os.close(file)
            if not is_begun(path):
                raise
            part.unlink(missing_ok=True)
            raise Invalid(f"--{self._flag}={path}: a run has begun there meanwhile") from None
        _claims[path.resolve()] = file

    def claim(self) -> None:
        """Keeps other processes' runs out of the folder until this process ends, however it does.

        Raises:
          Invalid: another one writes to it.
        """
        path = self.path.resolve()
        if path in _claims:
            return
        try:
            file = os.open(path / SETTINGS, os.O_WRONLY)  # to lock over NFS is to write
        except OSError:
            return  # what is written next says why it cannot be
        if not _lock(file):
            os.close(file)
            raise Invalid(f"{self.given}: a run writes to this folder now; wait for its end")
        _claims[path] = file

    def write(self, file: str, text: str) -> None:
        """Writes a whole file; what it was before stays until then."""
        path = self.path / file
        part = path.with_name(f"{path.name}.tmp")  # a kill leaves all of it or nothing
        part.write_text(text, encoding="utf-8")
        part.replace(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row, on disk before it returns."""
        with open(self.path / ROWS, "a+b") as lines:
            _drop_cut_off_line(lines)
            lines.write(json.dumps(row).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())

    def rows(self) -> dict[int, dict[str, Any]]:
        """The rows by the number of their line; of a fresh folder none.

        A line that was cut off while it was written is passed over, as an empty one is.

        Raises:
          Invalid: the file cannot be read, or a line is no row; the message has its number.
        """
        if self._path is None:
            return {}
        return read_rows(self.path / ROWS, self.name, f"{self.given}: ")

    def note(self, errors: str) -> None:
        """Adds what a failure had to say to errors.log; nothing where it had nothing."""
        if errors.strip():
            with open(self.path / ERRORS, "a", encoding="utf-8") as file:
                file.write(errors.rstrip("\n") + "\n")


def read_rows(path: Path, of: str, given: str = "") -> dict[int, dict[str, Any]]:
    """The JSON objects of a file, one a line, by its number; none where there is no file.

    A line that was cut off while it was written is passed over, as an empty one is.

    Args:
      path: path of the file.
      of: name of what the rows are of, for an error.
      given: flag that gave the folder, with which an error of the whole file begins.

    Raises:
      Invalid: the file cannot be read, or a line is no object; the message has its number.
    """
    try:
        data = path.read_bytes()
        text = data[: data.rfind(b"\n") + 1].decode()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Invalid(
            f"{given}{of_system(error)}; give a folder that can be read and written"
        ) from None
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: not UTF-8 ({error.reason}); start a new run") from None
    rows = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows[number] = json.loads(line)
            except ValueError:
                raise no_row(path, number, of) from None
            if not isinstance(rows[number], dict):
                raise no_row(path, number, of)
    return rows


def no_row(path: Path, number: int, of: str) -> Invalid:
    """The error of a line that is no row of what its file is of."""
    return Invalid(
        f"{path}, line {number}: not a row of {of}; delete that line, and what it was of is done"
        " again"
    )


def is_begun(path: Path) -> bool:
    """Whether a run has begun in a folder."""
    return (path / SETTINGS).exists()


def _lock(file: int) -> bool:
    """Locks an open file until this process ends; False where another process has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _drop_cut_off_line(lines: BinaryIO) -> None:
    """Removes what stands behind the last line feed of a file."""
    size = lines.seek(0, os.SEEK_END)
    lines.seek(max(size - 1, 0))
    if lines.read(1) not in (b"", b"\n"):
        lines.seek(0)
        # Written anew, the lines would be gone on a full disk.
        lines.truncate(lines.read().rfind(b"\n") + 1)


def fresh_folder(parent: Path, name: str) -> Path:
    """Makes `parent`/NAME-DATE-TIME, never one that exists."""
    stamp = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise
            number += 1
        else:
            return path
