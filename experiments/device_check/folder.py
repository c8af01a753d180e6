"""The folder of a `device_check`: settings, rows as they come, and the report over them."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from attnlab.runs.folders import fresh_folder

from attnlab.bench.case import Case, Result
from attnlab.bench.folder import SETTINGS, Folder
from experiments.device_check import cases as device_cases
from experiments.device_check.cases import Check, Checked
from experiments.device_check.settings import Settings

CHECKED = "correctness.jsonl"
Rows = dict[Check | Case, Checked | Result]


@dataclasses.dataclass(frozen=True)
class DeviceFolder:
    """`results.jsonl` has the timed rows, `correctness.jsonl` the checks."""

    path: Path

    @classmethod
    def create(cls, parent: Path, settings: Settings) -> "DeviceFolder":
        """A fresh folder `parent`/device_check-DATE-TIME.

        Raises:
          Invalid: it cannot be made.
        """
        path = fresh_folder(parent, "device_check")
        (path / SETTINGS).write_text(json.dumps(settings.as_json(), indent=2) + "\n")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "DeviceFolder":
        """A folder that an earlier run made.

        Raises:
          Invalid: it is not one.
        """
        return cls(Folder.open(path).path)

    def settings(self) -> dict[str, Any]:
        """The settings it was made with."""
        return Folder(self.path).settings()

    def append(self, row: Checked | Result) -> None:
        """Adds a row, on disk before it returns."""
        if isinstance(row, Result):
            Folder(self.path).append(row)
            return
        with open(self.path / CHECKED, "a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> Rows:
        """The last row of each check and case; a line that was cut off is dropped."""
        found: Rows = {row.case: row for row in Folder(self.path).results()}
        try:
            lines = (self.path / CHECKED).read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return found
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
            (self.path / CHECKED).write_text("".join(lines), encoding="utf-8")
        for line in lines:
            row = device_cases.from_json(json.loads(line))
            found[row.check] = row
        return found
