"""metrics.jsonl, the curve of a training: one JSON object a line, on disk when `add` returns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["METRICS", "MetricsFile", "read_metrics"]

METRICS = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder; a last line that was cut off while it was written is left out."""
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class MetricsFile:
    """Appends rows, each with its "step" and its "kind", "training" or "validation"."""

    def __init__(self, folder: Path, *, after_step: int):
        """Opens the file of a run that goes on after `after_step`; later rows come again."""
        self.path = folder / METRICS
        kept = [row for row in read_metrics(folder) if row["step"] <= after_step]
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        fresh.replace(self.path)

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
