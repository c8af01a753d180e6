"""The rows of a training's curve for TensorBoard (extra `tensorboard`; needs no TensorFlow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlab.runs.errors import Invalid

__all__ = ["TensorBoard", "require_tensorboard"]


def require_tensorboard() -> Any:
    """The class that writes event files.

    Raises:
      Invalid: the package is not installed.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise Invalid(
            "--tensorboard needs the package tensorboard, which is not installed: run "
            "`launch/local --extra=tensorboard NAME --tensorboard …`, or `pip install "
            "tensorboard` in your own environment, or give --notensorboard"
        ) from None
    return Writer


class TensorBoard:
    """Writes every number of a row as KIND/NAME over steps. Use it in `with`."""

    def __init__(self, folder: Path):
        """Opens an event file in `folder`/tensorboard.

        Raises:
          Invalid: the package is not installed.
        """
        self._writer = require_tensorboard()(str(folder / "tensorboard"))

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, row: dict[str, Any]) -> None:
        """Writes a row of metrics.jsonl."""
        for name, x in row.items():
            if name not in ("kind", "step"):
                self._writer.add_scalar(f"{row['kind']}/{name}", x, step=row["step"])
        self._writer.flush()
