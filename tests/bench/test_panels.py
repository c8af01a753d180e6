"""What stands where in the figures: measured on the drawn figure, from made-up rows."""

import dataclasses
import itertools

import pytest

from attnlab.bench import panels
from attnlab.bench.case import PASSES, Case, Result
from attnlab.mechanisms.attentions import KINDS
from experiments.compare_lengths.panels import draw
from tests.bench import rows
from tests.words import boxes, hidden

LENGTHS = (512, 1024, 2048, 3072, 4096, 16384)
NAMES = [f"{name}-3" if kind.counts else name for name, kind in KINDS.items()]
DENSE = ("exact:dense", "additive:dense")
DEFAULT = ("exact", "additive", *DENSE, "window-128", "lsh-4")


def made(labels, lengths, passes) -> list[Result]:
    """Rows in which equal mechanisms are equal, and long dense ones do not run."""
    found = []
    for label, n, p in itertools.product(labels, lengths, passes):
        name, _, way = label.partition(":")
        like = "dot:dense" if way else {"additive": "additive", "lsh-4": "lsh-4"}.get(name, "dot")
        case = dataclasses.replace(Case(name, n, p, num_heads=4), implementation=way or None)
        lost = dict(status="too_large", seconds=(), message="needs about 24.0 GiB of 8 GiB allowed")
        if name == "additive":
            why = "not run: about 40 s a call, by shorter lengths (limit 10 s)"
            lost = dict(status="too_slow", seconds=(), message=why)
        extra = lost if way and n > 3000 else {}
        row = rows.row(like, n, p, **extra)
        found.append(dataclasses.replace(row, case=case, available_bytes=8 * rows.GIB))
    return found


@pytest.mark.parametrize("quantity", ["time", "memory"])
@pytest.mark.parametrize(
    ("labels", "lengths", "passes"),
    [
        (DEFAULT, LENGTHS, PASSES),
        (DEFAULT, LENGTHS[:2], PASSES[:1]),
        (("lsh-4",), LENGTHS, PASSES[1:]),
        (("window-16",), LENGTHS[:1], PASSES),
        ((*NAMES, *DENSE), LENGTHS, PASSES),
    ],
)
def test_no_word_hides_another_or_a_point_or_is_cut(labels, lengths, passes, quantity):
    figure = draw(made(labels, lengths, passes), quantity, "")
    assert not hidden(figure)
    words = boxes(figure)
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for line in axes.lines:
            if line.get_marker() in "*os^Dvp<>Xh":
                points = axes.transData.transform(line.get_xydata())
                assert all(low <= y <= high for _, y in line.get_xydata())
                assert not any(box.contains(*xy) for _, box in words for xy in points), line


def test_equal_curves_show_both():
    axes = draw(made(("dot", "general"), LENGTHS, PASSES[:1]), "memory", "").axes[0]
    first, second = (line for line in axes.lines if len(line.get_xdata()) == len(LENGTHS))
    assert list(first.get_ydata()) == list(second.get_ydata())
    assert first.get_linewidth() > second.get_linewidth() + 1
    assert first.get_markersize() > second.get_markersize() + 1
    assert first.get_zorder() <= second.get_zorder()


@pytest.mark.parametrize("quantity", ["time", "memory"])
@pytest.mark.parametrize("low", [3e-6, 1.0, 2.0**20, 7e11])
@pytest.mark.parametrize("times", [1.0, 1.01, 27.6, 1e4, 1e12])
def test_ticks_cover_the_data(low, times, quantity):
    ticks = panels.round_steps(low, low * times, quantity)
    assert ticks[0] <= low * 1.001 and ticks[-1] >= low * times * 0.999
    assert 2 <= len(ticks) <= 10 and ticks == sorted(set(ticks))
