"""Where the words of a drawn figure stand: the tests of figures ask whether they can be read."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def boxes(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Every word, with those of ticks and legends, and where it stands."""
    FigureCanvasAgg(figure).draw()
    off_the_scale = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = {*axis.majorTicks, *axis.minorTicks} - {*axis._update_ticks()}
        off_the_scale |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    found = [(t, t.get_window_extent()) for t in shown if t not in off_the_scale]
    return [(t, box) for t, box in found if box.width > 1]


def hidden(figure: Figure) -> list[str]:
    """Words that are cut at the edge or stand on others."""
    words, page = boxes(figure), figure.bbox
    cut = [t.get_text() for t, b in words if not (page.contains(*b.min) and page.contains(*b.max))]
    return cut + [
        f"{one.get_text()} on {other.get_text()}"
        for (one, box), (other, its) in itertools.combinations(words, 2)
        if box.padded(-1).overlaps(its.padded(-1))
    ]
