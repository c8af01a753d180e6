"""Tables and figures of `language_model`: quality against cost, other rounds, what rounds see.

At a length a model is as good as exact attention where its bits per byte, over the seeds that both
were trained with, three at least, are at most `--equal_bits` more, by all of the 95 % interval of
the difference; and faster where a token takes at most `FASTER` of exact attention's time.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attnlab.bench.panels import thousands
from attnlab.runs import figure_files
from attnlab.runs.intervals import FEWEST, half_width
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import MUTED, by_rounds
from attnlab.runs.report import group
from attnlab.runs.units import spread
from attnlab.studies.frontier import Mark, frontier_figure, interval
from attnlab.studies.study import Row
from experiments.language_model.copying import SYMBOLS
from experiments.language_model.measure import WATCHED
from experiments.language_model.models import rounds_of

NO_ATTENTION = "no attention"  # the name under which an ablated model is evaluated
FASTER = 0.95  # of exact attention's time: what is nearer is noise
_BITS = "bits per byte, test"
_COSTS: dict[str, Callable[[Point], float | None]] = {  # of a model, by their axis
    "time of a step, µs a token": lambda point: point.seconds and 1e6 * point.seconds,
    "memory of a step, KiB a token": lambda point: point.memory and point.memory / 1024,
}
VERDICTS = {True: "As good", False: "Worse", None: "Undecided"}  # by `is_equal`


@dataclasses.dataclass(frozen=True)
class Point:
    """One model at one length.

    Attributes:
      model: name of the model that was trained.
      length: number of tokens in a window.
      bits: bits per byte of the test part, by seed.
      seconds: time of a step over its tokens; None = not known.
      memory: bytes of a step over its tokens; None = not known.
    """

    model: str
    length: int
    bits: Mapping[int, float]
    seconds: float | None = None
    memory: float | None = None

    @property
    def mean(self) -> float:
        """The mean of the bits over the seeds."""
        return statistics.fmean(self.bits.values())

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the 95 % interval of the mean."""
        return interval([*self.bits.values()])

    def time_of(self, other: Point) -> float | None:
        """Its time over the other's, None where one is not known."""
        if self.seconds is None or other.seconds is None:
            return None
        return self.seconds / other.seconds

    def more_than(self, other: Point) -> list[float]:
        """The bits that it has more, of each seed of both."""
        return [self.bits[seed] - other.bits[seed] for seed in self.bits if seed in other.bits]


def seconds_per_token(rows: Sequence[Row]) -> float | None:
    """The median over the seeds of a model."""
    known = [x for row in rows if (x := row.details.get("seconds_per_token")) is not None]
    return statistics.median(known) if known else None


def points(rows: Sequence[Row]) -> dict[tuple[int, str, str], Point]:
    """What is known of a text by length, trained model and evaluated model, lengths rising."""
    text = sorted(
        (row for row in rows if row.cell["task"] == "text"), key=lambda row: row.cell["length"]
    )
    groups = group(
        text,
        lambda row: (row.cell["length"], row.cell["model"], row.evaluated or row.cell["model"]),
    )
    by_key = {}
    for key, some in groups.items():
        length, model, evaluated = key
        own = groups.get((length, evaluated, evaluated), [])
        memory = [
            row.details["memory"] / row.details["tokens"] for row in own if "memory" in row.details
        ]
        by_key[key] = Point(
            model,
            length,
            {row.cell.seed: row.scores["bits per byte"] for row in some},
            seconds_per_token(own),
            memory[0] if memory else None,
        )
    return by_key


def group_trained(rows: Sequence[Row]) -> dict[int, dict[str, Point]]:
    """The models as they were trained, by length and name."""
    by_length: dict[int, dict[str, Point]] = {}
    for (length, model, evaluated), point in points(rows).items():
        if model == evaluated:
            by_length.setdefault(length, {})[model] = point
    return by_length


def answer(rows: Sequence[Row], margin: float) -> str:
    """How the models stand beside exact attention at the longest length; "" = not known.

    Up to `margin` bits per byte more count as equal.
    """
    by_length = group_trained(rows)
    compared = [length for length, some in by_length.items() if beside_exact(some)]
    if not compared:
        copies = [row for row in rows if row.cell["task"] == "copy"]
        if len(copies) < len(rows) or not copies:
            return ""
        row = max(copies, key=lambda row: row.scores["symbols right"])
        return f"symbols right: {row.scores['symbols right']:.1%} ({row.cell.title})"
    longest = max(compared)
    exact = by_length[longest]["exact"]
    by_verdict: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS.values()}
    for point in beside_exact(by_length[longest]):
        more = point.more_than(exact)
        text = f"{spread(more, '+.3f')} in {point.time_of(exact):.2f} of its time"
        begin = faster_from(point.model, by_length, margin)
        if begin is not None and begin < longest:
            text += f", faster from {begin:,} on"
        by_verdict[VERDICTS[is_equal(more, margin)]].append(f"{point.model} ({text})")
    parts = [f"{verdict}: {', '.join(some)}" for verdict, some in by_verdict.items() if some]
    return f"Bits beside exact attention with windows of {longest:,} tokens. " + ". ".join(parts)


def beside_exact(some: Mapping[str, Point]) -> list[Point]:
    """The models of one length that can be compared with exact attention, in time and bits."""
    exact = some.get("exact")
    return [
        point
        for point in some.values()
        if exact is not None
        and point is not exact
        and point.time_of(exact) is not None
        and point.more_than(exact)
    ]


def faster_from(
    model: str, by_length: Mapping[int, Mapping[str, Point]], margin: float
) -> int | None:
    """The length from which on a model is as good as exact attention and faster, if any."""
    begin = None
    for length, some in by_length.items():
        points = {point.model: point for point in beside_exact(some)}
        if model in points:
            exact, point = some["exact"], points[model]
            is_faster = (point.time_of(exact) or 0) <= FASTER
            pays = is_faster and is_equal(point.more_than(exact), margin)
            begin = (begin or length) if pays else None
    return begin


def is_equal(more: Sequence[float], margin: float) -> bool | None:
    """Whether the bits that a model has more, by seed, are at most the margin; None = undecided.

    >>> is_equal([0.0, 0.001, 0.002], 0.01), is_equal([0.03, 0.031, 0.032], 0.01)
    (True, False)
    >>> is_equal([0.0, 0.01, 0.02], 0.01), is_equal([0.0, 0.0], 0.01)
    (None, None)
    """
    if len(more) < FEWEST:
        return None
    mean, width = statistics.fmean(more), half_width(more)
    if mean + width <= margin + 1e-9:  # rounded
        return True
    return False if mean - width > margin else None


def sections(rows: Sequence[Row], margin: float) -> Iterator[str]:
    """All tables but that of the models as they were trained."""
    for table in (_against_exact(rows, margin), _rounds(rows), _mass(rows), _ablation(rows)):
        yield from table
    if any(row.cell["task"] == "copy" for row in rows):
        yield (
            "*copy* is a word of random symbols, noise, and the word again, each symbol behind the"
            " number of its place: one layer is to predict it from the first word, which stands at"
            f" least as many tokens before. A guess is right {1 / SYMBOLS:.1%} of the time."
        )


def _against_exact(rows: Sequence[Row], margin: float) -> Iterator[str]:
    lines = []
    for length, some in group_trained(rows).items():
        if (exact := some.get("exact")) is None:
            continue
        for point in some.values():
            more, time = point.more_than(exact), point.time_of(exact)
            if point is not exact and more:
                ratio = "" if time is None else f"{time:.2f}"
                verdict = VERDICTS[is_equal(more, margin)].lower()
                lines.append([str(length), point.model, spread(more, "+.3f"), verdict, ratio])
    drawn = any("memory" in row.details for row in rows)
    if drawn or lines:
        yield "## Quality against cost"
    if drawn:
        yield "![bits per byte against time and memory](frontier.svg)"
    if lines:
        header = ["length", "model", "bits against exact", "verdict", "of exact's time"]
        yield markdown_table(header, lines)
        yield (
            "Bits are the mean over the seeds of both. A model is *as good* where all of the"
            f" interval is at most {margin:g} more, *worse* where all of it is above that; it is"
            f" faster with up to {FASTER:g} of the time."
        )
    if len({point.length for point in _known(rows)}) > 1:
        yield "## Over the length"
        yield "![bits per byte, time and memory over the length](lengths.svg)"


def _rounds(rows: Sequence[Row]) -> Iterator[str]:
    hashing = {
        key: point for key, point in points(rows).items() if rounds_of(key[1]) and rounds_of(key[2])
    }
    if not hashing:
        return
    evaluated = sorted({key[2] for key in hashing}, key=lambda name: rounds_of(name) or 0)
    lines = []
    for length, model in dict.fromkeys(key[:2] for key in hashing):
        some = [hashing.get((length, model, name)) for name in evaluated]
        bits = ["" if x is None else spread([*x.bits.values()], ".3f") for x in some]
        lines.append([str(length), model, *bits])
    yield "## Other rounds at evaluation"
    yield "![bits per byte over rounds](rounds.svg)"
    yield markdown_table(["length", "trained", *(f"as {name}" for name in evaluated)], lines)
    yield (
        "No parameter of LSH depends on the number of rounds. Figure 4 of Kitaev et al. (2020) has"
        " the same shape for images; it prints no numbers."
    )


def _mass(rows: Sequence[Row]) -> Iterator[str]:
    seen = [row for row in rows if "masses" in row.details]
    if not seen:
        return
    models = list(dict.fromkeys(row.cell["model"] for row in seen))
    seen.sort(key=lambda row: (row.cell["length"], models.index(row.cell["model"]), row.cell.seed))
    steps = sorted({step for row in seen for step in row.details["steps"]})
    lines = []
    for row in seen:
        by_step = dict(zip(row.details["steps"], row.details["masses"], strict=True))
        masses = [f"{by_step[step]:.3f}" if step in by_step else "" for step in steps]
        cell, pairs = row.cell, row.details["pairs"][-1]
        lines.append([f"{cell['length']}", cell["model"], f"{cell.seed}", *masses, f"{pairs:.3f}"])
    header = ["length", "model", "seed", *(f"step {step}" for step in steps), "pairs"]
    yield "## What the rounds see"
    yield "![mass seen over training](mass.svg)"
    yield markdown_table(header, lines)
    yield (
        "The share of full attention's mass, with the same queries and keys, that lies on pairs"
        " which some round shows; *pairs* is the share of all pairs, which is the mass that as many"
        f" keys chosen at random would have. Windows have at most {WATCHED:,} tokens here, and the"
        " number of buckets that goes with that."
    )


def _ablation(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for title, some in group(rows, lambda row: row.cell.title).items():
        (score,) = some[0].scores
        form = ".1%" if score == "symbols right" else ".3f"
        whole = {row.cell.seed: row.scores[score] for row in some if not row.evaluated}
        zeroed = {row.cell.seed: row.scores[score] for row in some if row.evaluated == NO_ATTENTION}
        both = [zeroed[seed] - whole[seed] for seed in whole if seed in zeroed]
        if both:
            scores = (spread([*x.values()], form) for x in (whole, zeroed))
            lines.append([title, score, *scores, f"{statistics.fmean(both):+{form}}"])
    if not lines:
        return
    yield "## Without attention"
    yield markdown_table(["task, length, model", "score", "whole", "without", "difference"], lines)
    yield (
        "The same parameters with the last projection of attention at 0: of the layers that hash,"
        " where there are some, else of all. Where that changes nothing, the layers are of no use."
    )


def draw(rows: Sequence[Row]) -> dict[str, Figure | None]:
    """Each figure that there are points for."""
    with figure_files.style():
        return {
            "frontier": _draw_frontier(_known(rows)),
            "lengths": _draw_lengths(_known(rows)),
            "rounds": _draw_rounds(rows),
            "mass": _draw_mass(rows),
        }


def _look(model: str, models: Collection[str]) -> dict[str, Any]:
    color, marker = by_rounds(model, list(models))
    return {"color": color, "marker": marker, "markersize": 7 if marker == "*" else 5}


def _panels(count: int, **options: Any) -> tuple[Figure, list[Any]]:
    """Panels in one row, or in rows of two where they are more than three."""
    columns = count if count <= 3 else 2
    rows = -(-count // columns)
    figure = Figure(figsize=(min(1.6 + 3.3 * columns, 8.2), 3.2 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[:count]:
        axes.grid()
    return figure, panels[:count]


def _legend(figure: Figure, panels: Sequence[Any]) -> Figure:
    lines: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, handle)
    columns = 4 if len(panels) > 1 else 2  # as many as a panel is wide
    place = {"loc": "outside upper left", "ncols": columns}
    figure.legend(lines.values(), lines.keys(), frameon=False, **place)
    return figure


def _known(rows: Sequence[Row]) -> list[Point]:
    """The models as they were trained whose costs are known, lengths rising."""
    trained = [point for key, point in points(rows).items() if key[1] == key[2]]
    return [point for point in trained if all(of(point) is not None for of in _COSTS.values())]


def _draw_frontier(known: Sequence[Point]) -> Figure | None:
    """Bits per byte against what a token costs, at the longest length: left and low is good."""
    if not known:
        return None
    longest = max(point.length for point in known)
    some = [point for point in known if point.length == longest]
    models = [point.model for point in some]
    marks = {
        point.model: Mark(
            by_rounds(point.model, models),
            [*point.bits.values()],
            [cost_of(point) or 0 for cost_of in _COSTS.values()],
        )
        for point in some
    }
    note = f" Windows of {longest:,} tokens.{_explain_shared(models)}"
    return frontier_figure(marks, score=_BITS, costs=[*_COSTS], note=note)


def _draw_lengths(known: Sequence[Point]) -> Figure | None:
    """Bits per byte and what a token costs over the length, a line for each model."""
    lengths = sorted({point.length for point in known})
    if len(lengths) < 2:
        return None
    models = list(dict.fromkeys(point.model for point in known))
    figure, panels = _panels(3)
    kinds = {_BITS: lambda point: point.mean, **_COSTS}
    for axes, (name, y_of) in zip(panels, kinds.items(), strict=True):
        for model in models:
            some = [point for point in known if point.model == model]
            ys = [y_of(point) for point in some]
            axes.plot(
                [x.length for x in some], ys, label=model, linewidth=1.3, **_look(model, models)
            )
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("tokens in a window")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [thousands(length) for length in lengths])
    for point in known:
        color = _look(point.model, models)["color"]
        panels[0].vlines([point.length], *point.interval, color=color, linewidth=1)
    for axes, cost_of in zip(panels[1:], _COSTS.values(), strict=True):
        axes.set_ylim(0, 1.06 * max(cost_of(point) or 0 for point in known))
    text = f"Mean over seeds, 95 % interval.{_explain_shared(models)}"
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return _legend(figure, panels)


def _explain_shared(models: Collection[str]) -> str:
    return " shared: exact attention whose keys are its queries." if "shared" in models else ""


def _draw_rounds(rows: Sequence[Row]) -> Figure | None:
    """Bits per byte over the rounds at evaluation, a line for each trained model."""
    by_key = points(rows)
    hashing = [key for key in by_key if rounds_of(key[1]) and rounds_of(key[2])]
    lengths = list(dict.fromkeys(length for length, *_ in hashing))
    models = dict.fromkeys(key[1] for key in by_key)
    if not hashing:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for model in dict.fromkeys(key[1] for key in hashing):
            keys = [key for key in hashing if key[:2] == (length, model)]
            some = sorted((rounds_of(key[2]) or 0, by_key[key].mean, by_key[key]) for key in keys)
            if some:
                xs, ys, of_seeds = zip(*some, strict=True)
                look = _look(model, models)
                axes.plot(xs, ys, label=f"trained as {model}", linewidth=1.3, **look)
                lows, highs = zip(*(point.interval for point in of_seeds), strict=True)
                axes.vlines(xs, lows, highs, color=look["color"], linewidth=1)
        for model in models:
            if (length, model, model) in by_key and rounds_of(model) is None:
                look = _look(model, models)
                axes.axhline(
                    by_key[length, model, model].mean, color=look["color"], label=model, linewidth=1
                )
        axes.set_title(f"{length:,} tokens")
        axes.set_xlabel("rounds at evaluation")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    panels[0].set_ylabel(_BITS)
    return _legend(figure, panels)


def _draw_mass(rows: Sequence[Row]) -> Figure | None:
    """What the rounds see while training goes on: the mean over seeds, and their range."""
    watched = group(
        [row for row in rows if "masses" in row.details],
        lambda row: (row.cell["length"], row.cell["model"]),
    )
    lengths = sorted({length for length, _ in watched})
    if not watched:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for (its, name), some in watched.items():
            if its == length:
                lines = [
                    dict(zip(row.details["steps"], row.details["masses"], strict=True))
                    for row in some
                ]
                steps = sorted(set.intersection(*map(set, lines)))  # a seed may end before others
                masses = np.array([[line[step] for step in steps] for line in lines])
                look = _look(name, [x for _, x in watched])
                axes.plot(steps, masses.mean(0), label=name, linewidth=1.3, **look)
                low, high = masses.min(0), masses.max(0)
                axes.fill_between(steps, low, high, color=look["color"], alpha=0.16, linewidth=0)
        axes.set_title(f"{length:,} tokens")
        axes.set_xlabel("step of training")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("share of the attention mass seen")
    return _legend(figure, panels)
