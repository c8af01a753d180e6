"""The curve for TensorBoard, whose package need not be there."""

import sys
import types

import pytest

from attnlab.training.tensorboard import TensorBoard


class Writer:
    """Stands for the package's own."""

    def __init__(self, folder):
        self.folder, self.added, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.added.append((name, value, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


def test_every_number_of_a_row_is_written(monkeypatch, tmp_path):
    package = types.SimpleNamespace(Writer=Writer)
    monkeypatch.setitem(sys.modules, "tensorboard", package)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", package)
    with TensorBoard(tmp_path) as board:
        board.add({"kind": "training", "step": 3, "loss": 0.5, "seconds": 2})
    assert Writer.last.folder == str(tmp_path / "tensorboard") and Writer.last.closed
    assert Writer.last.added == [("training/loss", 0.5, 3), ("training/seconds", 2, 3)]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(ValueError, match=r"launch/local --extra=tensorboard NAME"):
        TensorBoard(tmp_path)
