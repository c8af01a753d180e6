"""The report of `language_model`: the answer, the frontier, and the tables behind them."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import PLUS_MINUS, duration, human
from experiments.language_model.conclusion import answer
from experiments.language_model.models import rounds_of
from experiments.language_model.rows import NO_ATTENTION, Cost, Failed, Row
from experiments.language_model.settings import Settings
from experiments.language_model.summary import Point, copied, costs, points, qualities
from experiments.language_model.training import WATCHED

__all__ = ["markdown"]


def markdown(told: SoFar[Row], settings: Settings, text: str) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      settings: settings of the run.
      text: words for the text and its split.
    """
    rows = told.rows
    parts = ["# Is LSH attention worth it?", f"**{answer(rows, settings)}**"]
    if qualities(rows):
        parts += [_about(rows, settings, text), *_frontier(rows, settings)]
        parts += [*_rounds(rows), *_mass(rows), *_ablation(rows)]
    parts += [*_copies(rows), *_costs(rows)]
    failed = [row for row in rows if isinstance(row, Failed)]
    if failed:
        listed = "; ".join(f"{', '.join(map(str, row.key))}: {row.error}" for row in failed)
        parts.append(f"Failed: {listed}.")
    return document(*parts, told.missing, told.origin)


def _about(rows: Sequence[Row], settings: Settings, text: str) -> str:
    s = settings
    sizes = {row.tokens for row in qualities(rows)}
    tokens = " to ".join(f"{n:,}" for n in sorted({min(sizes), max(sizes)}))
    fewest, most = (f({row.parameters for row in qualities(rows)}) for f in (min, max))
    return (
        f"Models of {s.num_layers} layers with {s.num_heads} heads of width {s.head_dim},"
        f" {fewest:,} to {most:,} parameters (fewer with shared queries and keys, more where the"
        f" layers are reversible), trained on {tokens} {s.vocabulary} each in {s.steps:,} steps of"
        f" Adam, on {text}."
        " *window-R* sees R tokens before its own; *lsh-R* hashes R times,"
        f" shares queries and keys, and attends in chunks of {s.chunk_size}, strictly causally,"
        " with other rotations in each step of training; *shared* is the same in one chunk, which"
        " keeps the weights of all pairs. Bits per byte are of the whole test part, in windows one"
        " after the other, each byte predicted once; the parameters are those with the best"
        " validation."
    )


def _frontier(rows: Sequence[Row], settings: Settings) -> list[str]:
    found = points(rows)
    cells = []
    for point in found.values():
        exact = found.get((point.length, "exact", "exact"))
        cells.append([str(point.length), point.model, point.written(), *_cost_cells(point, exact)])
    header = ["length", "model", "bits per byte", "against exact", "time a token", "of exact's"]
    drawn = any(point.cost for point in found.values())
    return [
        "## Quality against cost",
        *(["![bits per byte against time and memory](frontier.svg)"] if drawn else []),
        markdown_table([*header, "memory of a step"], cells),
        f"{PLUS_MINUS} *Against exact* is the mean over the seeds of both. Time"
        f" and memory are of a training step of {settings.cost_tokens:,} tokens, or of one window"
        " where that is longer, on the machine below; the models' steps are timed in turns, and *of"
        " exact's* is the median of the turns' ratios.",
    ]


def _cost_cells(point: Point, exact: Point | None) -> list[str]:
    more = "" if exact is None else _more(point, exact)
    ratio = ""
    if exact is not None and (times := point.time_of(exact)) is not None:
        ratio = f"{times:.2f}"
    memory = None if point.cost is None else point.cost.memory
    return [more, duration(point.per_token), ratio, human(memory)]


def _more(point: Point, other: Point) -> str:
    """The bits that a point has more; "" where no seed is of both."""
    return f"{point.more_than(other):+.3f}" if point.bits.keys() & other.bits.keys() else ""


def _rounds(rows: Sequence[Row]) -> list[str]:
    found = points(rows, as_trained=False)
    hashing = {key: x for key, x in found.items() if rounds_of(key[1]) and rounds_of(key[2])}
    if not hashing:
        return []
    evaluated = sorted({key[2] for key in hashing}, key=lambda name: rounds_of(name) or 0)
    rest = dict.fromkeys(key[:2] for key in hashing)
    cells = []
    for length, model in rest:
        some = [hashing.get((length, model, name)) for name in evaluated]
        cells.append([str(length), model, *("" if x is None else x.written() for x in some)])
    return [
        "## Other rounds at evaluation",
        "![bits per byte over rounds](rounds.svg)",
        markdown_table(["length", "trained", *(f"as {name}" for name in evaluated)], cells),
        "No parameter of LSH depends on the number of rounds. Figure 4 of Kitaev et al. (2020) has"
        " the same shape for images; it prints no numbers.",
    ]


def _mass(rows: Sequence[Row]) -> list[str]:
    found = [row for row in qualities(rows) if row.masses]
    if not found:
        return []
    models = list(dict.fromkeys(row.model for row in found))
    found.sort(key=lambda row: (row.length, models.index(row.model), row.seed))
    steps = sorted({step for row in found for step in row.steps})
    cells = []
    for row in found:
        by_step = dict(zip(row.steps, row.masses, strict=True))
        masses = [f"{by_step[step]:.3f}" if step in by_step else "" for step in steps]
        cells.append([str(row.length), row.model, str(row.seed), *masses, f"{row.pairs[-1]:.3f}"])
    header = ["length", "model", "seed", *(f"step {step}" for step in steps), "pairs"]
    return [
        "## What the rounds see",
        "![mass seen over training](mass.svg)",
        markdown_table(header, cells),
        "The share of full attention's mass, with the same queries and keys, that lies on pairs"
        " which some round shows; *pairs* is the share of all pairs, which is the mass that as many"
        f" keys chosen at random would have. Windows have at most {WATCHED:,} tokens here, and the"
        " number of buckets that goes with that.",
    ]


def _ablation(rows: Sequence[Row]) -> list[str]:
    found = points(rows, as_trained=False)
    cells = []
    for (length, model, evaluated), point in found.items():
        whole = found.get((length, model, model))
        if evaluated == NO_ATTENTION and whole is not None:
            cells.append(
                [str(length), model, whole.written(), point.written(), _more(point, whole)]
            )
    if not cells:
        return []
    return [
        "## Without attention",
        markdown_table(["length", "model", "bits per byte", "without", "difference"], cells),
        "The same parameters with the last projection of attention at 0: of the layers that hash,"
        " where there are some, else of all. Where that changes nothing, the layers are of no use.",
    ]


def _copies(rows: Sequence[Row]) -> list[str]:
    found = copied(rows)
    if not found:
        return []
    cells = [
        [row.model, f"{row.accuracy:.1%}", f"{row.zeroed:.1%}", f"{row.steps:,}"] for row in found
    ]
    one = found[0]
    return [
        f"## A copy across {one.distance:,} tokens",
        markdown_table(["model", "symbols right", "without attention", "steps"], cells),
        "A word of random symbols, noise, and the word again, each symbol behind the number of its"
        " place: one layer is to predict it from the first word, which stands at least"
        f" {one.distance:,} tokens before. A guess is right {one.chance:.1%} of the time.",
    ]


def _costs(rows: Sequence[Row]) -> list[str]:
    targets = list(dict.fromkeys(row.target for row in rows if isinstance(row, Cost)))
    if not targets:
        return []
    parts = ["## Cost over length", "![time and memory over length](cost.svg)"]
    for target in targets:
        some = costs(rows, target)
        models = list(dict.fromkeys(row.model for row in some))
        cells = []
        for length in sorted({row.length for row in some}):
            at = {row.model: row for row in some if row.length == length}
            cells.append([str(length), *(_cell(at.get(model)) for model in models)])
        parts.append(
            f"Memory of a training step of one window, compiled for {target}:"
            if target
            else "Time a token, and memory, of a training step here:"
        )
        parts.append(markdown_table(["length", *models], cells))
    return parts


def _cell(row: Cost | None) -> str:
    if row is None:
        return ""
    if row.status != "ok":
        return row.message
    time = "" if row.per_token is None else f"{duration(row.per_token)}, "
    return f"{time}{human(row.memory)}"
