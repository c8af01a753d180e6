"""What every test of an experiment runs under."""

from collections.abc import Iterator

import pytest

from attnlab.runs import figure_files
from tests.experiments.tiny import save_nothing
from tests.words import hidden


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Programs compile sooner also where a test starts a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
        yield


@pytest.fixture(autouse=True)
def read_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each figure that an experiment writes in this process, all words can be read."""
    written = figure_files.save

    def save(figures, folder):
        paths = written(figures, folder)
        with figure_files.style():
            unread = {name: hidden(figure) for name, figure in figures.items() if figure}
        assert not any(unread.values()), unread
        return paths

    monkeypatch.setattr(figure_files, "save", save)


@pytest.fixture
def no_figures(read_every_figure: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No experiment writes figures in this process: they take longer than all else."""
    monkeypatch.setattr(figure_files, "save", save_nothing)
