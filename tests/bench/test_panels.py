"""What stands where in the figures: measured on the drawn figure, from made-up rows."""

import dataclasses
import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnlab.attentions import KINDS
from attnlab.bench import margins, panels
from attnlab.bench.case import PASSES, Case, Result
from attnlab.runs.palette import INK, MUTED
from experiments.compare_lengths import figures
from tests.bench import rows

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


def boxes(figure):
    """Every word but those at the ticks, and where it stands."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [*figure.texts]
    for axes in figure.axes:
        texts += [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label]
    return [(t, t.get_window_extent(renderer)) for t in texts if t.get_text()]


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
    figure = figures.draw(made(labels, lengths, passes), quantity, "")
    words = boxes(figure)
    for text, box in words:
        inside = figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, text
    for (text, box), (other, its) in itertools.combinations(words, 2):
        touch = box.padded(-1).overlaps(its.padded(-1))
        assert not touch, (text, other)
    for axes in figure.axes:
        assert axes.get_ylabel() and len(axes.get_yticks()) <= 10
        assert {t.get_color() for t in axes.texts} <= {INK, MUTED}
        low, high = axes.get_ylim()
        ticks = axes.get_yticks()
        assert (low, high) == (ticks[0], ticks[-1])
        for line in axes.lines:
            if line.get_transform() == axes.transData and line.get_marker() not in ("None", ""):
                points = axes.transData.transform(line.get_xydata())
                assert all(low <= y <= high for _, y in line.get_xydata())
                assert not any(box.contains(*xy) for _, box in words for xy in points), line


def test_a_figure_says_what_it_shows():
    results = made(DEFAULT, LENGTHS, PASSES)
    for quantity in ("time", "memory"):
        figure = figures.draw(results, quantity, "")
        words = " | ".join(text.get_text() for text, _ in boxes(figure))
        assert "4 heads × 64" in words and "± its standard error" in words
        assert "at 3k needs about 24.0 GiB of 8 GiB allowed" in words
        assert "at 3k not run: about 40 s a call |" in words
        assert "× does not fit; ○ too slow" in words and "∝ n²" in words
        assert ("fastest to the slowest repeat" in words) == (quantity == "time")
        assert ("Dotted: to what a program needs" in words) == (quantity == "memory")


def test_a_pass_that_never_ran_has_a_panel_with_its_reasons():
    results = made(("dot", "lsh-4"), LENGTHS, PASSES)
    lost = dict(status="killed", seconds=(), temporary_bytes=None, resident_peak_bytes=None)
    results = [dataclasses.replace(r, **lost) if r.case.passes == PASSES[1] else r for r in results]
    for quantity in ("time", "memory"):
        words = [text.get_text() for text in figures.draw(results, quantity, "").axes[1].texts]
        assert words.count("at 512 killed") == 2


def test_equal_curves_show_both():
    axes = figures.draw(made(("dot", "general"), LENGTHS, PASSES[:1]), "memory", "").axes[0]
    first, second = (line for line in axes.lines if len(line.get_xdata()) == len(LENGTHS))
    assert list(first.get_ydata()) == list(second.get_ydata())
    assert first.get_linewidth() > second.get_linewidth() + 1
    assert first.get_markersize() > second.get_markersize() + 1
    assert first.get_zorder() <= second.get_zorder()


@pytest.mark.parametrize("quantity", ["time", "memory"])
@pytest.mark.parametrize("low", [3e-6, 1.0, 2.0**20, 7e11])
@pytest.mark.parametrize("times", [1.0, 1.01, 27.6, 1e4, 1e12])
def test_ticks_cover_the_data(low, times, quantity):
    ticks = panels._ticks(low, low * times, quantity)
    assert ticks[0] <= low * 1.001 and ticks[-1] >= low * times * 0.999
    assert 2 <= len(ticks) <= 10 and ticks == sorted(set(ticks))


@pytest.mark.parametrize("wanted", [[0.1, 0.5, 0.9], [0.5, 0.5, 0.5], [0.1, 0.12, 0.13, 0.9, 0.91]])
def test_labels_keep_their_order_and_distance(wanted):
    places = margins.spread_out(wanted, 0.06)
    assert all(b - a >= 0.06 - 1e-9 for a, b in zip(places, places[1:], strict=False))
    assert sum(places) == pytest.approx(sum(wanted))
