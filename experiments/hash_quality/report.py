"""The report of `hash_quality`: how many rounds are enough, and the tables that show it."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from experiments.hash_quality.lines import Line, Row, by_line, rounds_needed
from experiments.hash_quality.settings import Settings

MEASURES = (
    ("captured_mass", "mass"),
    ("top_k_recall", "recall"),
    ("relative_error", "error"),
    ("visible_pairs", "pairs"),
    ("visible_same_bucket", "same bucket"),
    ("lonely", "lonely"),
    ("largest_bucket", "largest bucket"),
)


def answer(rows: Sequence[Row], settings: Settings) -> str:
    """How many rounds the base line needs, and which line needs the fewest comparisons."""
    base = next(iter(by_line(rows).values()))
    return f"{_mass(rows, settings)} {_largest(base, settings)}"


def _mass(rows: Sequence[Row], settings: Settings) -> str:
    lines = by_line(rows)
    target = settings.target_mass
    base, some = next(iter(lines.items()))
    found = rounds_needed(some, target)
    if found is not None:
        said = (
            f"How many rounds do I need? {found.num_hashes}, to capture {target:.0%} of the"
            f" attention mass with {base.title()}: it captures {_percent(found)}, the worst head"
            f" {_worst_head(found):.0%}."
        )
    else:
        last = some[-1]
        said = (
            f"How many rounds do I need? More than {last.num_hashes} with {base.title()}:"
            f" {_rounds(last)} captured {_percent(last)} of the attention mass, not {target:.0%}."
        )
    enough = [row for some in lines.values() if (row := rounds_needed(some, target))]
    cheapest = min(enough, key=lambda row: row.keys_compared, default=None)
    if cheapest is None:
        nearest = max(rows, key=lambda row: row.means["captured_mass"])
        return (
            f"{said} No line that was measured gets there; the nearest is {nearest.line.title()},"
            f" whose {_rounds(nearest)} captured {_percent(nearest)}."
        )
    dense = settings.length / 2
    cost = f"{cheapest.keys_compared} keys compared a query, full causal attention {dense:.0f}"
    if cheapest.line == base:
        return f"{said} No line that was measured gets there with fewer comparisons ({cost})."
    return f"{said} The fewest comparisons: {cheapest.line.title()}, {_rounds(cheapest)} ({cost})."


def table(rows: Sequence[Row]) -> str:
    """A Markdown table: a row for each line and number of rounds, a column for each measure."""
    header = ["line", "rounds", "keys compared", *(short for _, short in MEASURES)]
    cells = [
        [line.title(), str(row.num_hashes), str(row.keys_compared)]
        + [f"{row.means[name]:.3f}" for name, _ in MEASURES]
        for line, some in by_line(rows).items()
        for row in some
    ]
    return markdown_table(header, cells)


def line(rows: Sequence[Row]) -> str:
    """The new rows of a line, for the terminal."""
    return "mass " + ", ".join(f"{row.means['captured_mass']:.3f}" for row in rows)


def markdown(told: SoFar[Row], settings: Settings, *, text: str) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      settings: settings of the run.
      text: name of the text.
    """
    rows = told.rows
    return document(
        "# How many hash rounds does LSH attention need?",
        f"**{answer(rows, settings)}**",
        f"{told.how_much('rows')} {_model(rows, settings, text)}",
        "![mass, recall and error over rounds](quality.svg)",
        _LEGEND,
        "## Rounds that are enough",
        _needed(rows, settings.target_mass),
        "## Everything measured",
        table(rows),
        "## Buckets",
        "![bucket sizes](buckets.svg)",
        _BUCKETS,
        "## Layers and heads",
        _heads(rows),
        told.origin,
    )


def _largest(rows: Sequence[Row], settings: Settings) -> str:
    """How many rounds the base line needs for its keys of largest weight alone."""
    found = rounds_needed(rows, settings.target_mass, "top_k_recall")
    row = found or rows[-1]
    seen = f"{_rounds(row)} showed {row.means['top_k_recall']:.1%}"
    enough = "which is enough" if found else f"not {settings.target_mass:.0%}"
    return f"Of the {settings.top_k} keys of largest weight, the base's {seen}, {enough}."


def _rounds(row: Row) -> str:
    return f"{row.num_hashes} round{'s' * (row.num_hashes > 1)}"


def _percent(row: Row) -> str:
    return f"{row.means['captured_mass']:.1%}"


def _worst_head(row: Row) -> float:
    return min(min(layer) for layer in row.per_head["captured_mass"])


def _model(rows: Sequence[Row], settings: Settings, text: str) -> str:
    bits = rows[0].bits
    trained = (
        "seeded, not trained"
        if bits is None
        else f"trained for {settings.train_steps} steps to {bits:.2f} bits a byte"
    )
    return (
        f"A causal model of {settings.num_layers} layers with {settings.num_heads} heads of width"
        f" {settings.head_dim}, {trained} on {text}; measured on"
        f" the last {settings.length} bytes, which it was not trained on. Means are over queries,"
        " layers and heads."
    )


def _needed(rows: Sequence[Row], target: float) -> str:
    cells = []
    for line, some in by_line(rows).items():
        found, last = rounds_needed(some, target), some[-1]
        row = found or last
        rounds = str(found.num_hashes) if found else f"> {last.num_hashes}"
        error = f"{row.means['relative_error']:.3f}"
        cells.append([line.title(), rounds, _percent(row), f"{_worst_head(row):.1%}", error])
    header = ["line", f"rounds for {target:.0%}", "mass", "worst head", "error"]
    return markdown_table(header, cells)


def _heads(rows: Sequence[Row]) -> str:
    base: Line = next(iter(by_line(rows)))
    some = by_line(rows)[base]
    layers = some[0].per_head["captured_mass"]
    names = [f"{i}.{n}" for i, layer in enumerate(layers) for n in range(len(layer))]
    cells = [
        [str(row.num_hashes), *(f"{x:.2f}" for x in sum(row.per_head["captured_mass"], []))]
        for row in some
    ]
    return f"Captured mass of each layer.head, {base.title()}.\n\n" + markdown_table(
        ["rounds", *names], cells
    )


_LEGEND = (
    "*mass*: share of full attention's weight that lies on keys which some round shows. *recall*:"
    " share of the keys of largest weight that some round shows. *error*: of the context, relative"
    " to full attention's. *pairs*: share of all allowed pairs that some round shows, which is the"
    " mass that as many keys chosen at random would capture. *same bucket*: of the pairs that share"
    " a bucket, the share that the window shows. *lonely*: queries that see no key. *largest"
    " bucket*: the share of all tokens that are in it. *keys compared*: a query's work, rounds × 2"
    " chunks. In the figure, marks are means over heads, and bars go from the lowest to the"
    " highest."
)
_BUCKETS = (
    "How many buckets hold how many tokens, mean over heads and rounds, at the most rounds that"
    " were measured; those at 0 are empty. A query sees at most the window's number of tokens of"
    " its bucket: what stands to the right of the dotted line is not seen whole."
)
