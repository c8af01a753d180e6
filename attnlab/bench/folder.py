"""The folder of one run: its settings, its rows as they come, and what is still missing."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from attnlab.bench.case import Case, Result, from_json, to_json
from attnlab.runs.errors import Invalid
from attnlab.runs.folders import fresh_folder

ROWS, SETTINGS = "results.jsonl", "settings.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """A results folder on disk."""

    path: Path

    @classmethod
    def create(cls, parent: Path, settings: dict[str, Any]) -> "Folder":
        """A fresh folder `parent`/compare_lengths-DATE-TIME, never one that exists.

        Raises:
          Invalid: it cannot be made.
        """
        path = fresh_folder(parent, "compare_lengths")
        try:
            (path / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            raise Invalid(f"{path / SETTINGS}: {error.strerror}; give another folder") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """A folder that an earlier run made.

        Raises:
          Invalid: it is not one.
        """
        if not (path / SETTINGS).is_file():
            raise Invalid(f"--resume={path}: no {SETTINGS} there; give a folder of this job")
        return cls(path)

    def settings(self) -> dict[str, Any]:
        """The settings it was made with.

        Raises:
          Invalid: the file does not hold any.
        """
        try:
            found = json.loads((self.path / SETTINGS).read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Invalid(f"--resume={self.path}: {SETTINGS} cannot be read; start a new run")
        return found

    def append(self, result: Result) -> None:
        """Adds a row, on disk before it returns."""
        with open(self.path / ROWS, "a", encoding="utf-8") as file:
            file.write(to_json(result) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def results(self) -> list[Result]:
        """The last row of each case, in the order the cases first came.

        A line that was cut off while it was written is dropped, an empty one passed over.

        Raises:
          Invalid: a line is no row; the message has its number.
        """
        path = self.path / ROWS
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            raise Invalid(f"{path}: not UTF-8 ({error.reason}); start a new run") from None
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
            path.write_text("".join(lines), encoding="utf-8")
        latest: dict[Case, Result] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                result = from_json(line)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise Invalid(
                    f"{path}, line {number}: not a row of this job; delete that line, and its case "
                    "is measured again"
                ) from None
            latest[result.case] = result
        return list(latest.values())
