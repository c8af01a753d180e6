"""The folder of one run: its settings, its rows as they come, and what is still missing."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from attnlab.bench.case import Case, Result, from_json, to_json
from attnlab.records.errors import Invalid
from attnlab.records.folders import fresh_folder

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
        (path / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
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
        """The settings it was made with."""
        try:
            return json.loads((self.path / SETTINGS).read_text())
        except ValueError:
            raise Invalid(f"--resume={self.path}: {SETTINGS} cannot be read") from None

    def append(self, result: Result) -> None:
        """Adds a row, on disk before it returns."""
        with open(self.path / ROWS, "a", encoding="utf-8") as file:
            file.write(to_json(result) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def results(self) -> list[Result]:
        """The last row of each case, in the order the cases first came.

        A line that was cut off while it was written is dropped.
        """
        try:
            lines = (self.path / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
            (self.path / ROWS).write_text("".join(lines), encoding="utf-8")
        latest: dict[Case, Result] = {}
        for line in lines:
            result = from_json(line)
            latest[result.case] = result
        return list(latest.values())
