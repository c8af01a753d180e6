"""The report of `duplication`: the table of models and rounds, and the grid."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.intervals import half_width
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import by_rounds
from attnlab.runs.published import read
from attnlab.runs.report import group
from attnlab.runs.units import spread
from attnlab.studies.study import Row
from experiments.duplication.attention import EXACT, Hashing, rounds_of
from experiments.duplication.settings import Settings

PUBLISHED = Path(__file__).parents[1] / "published" / "reformer2020_table2.csv"
Paper = Mapping[str, Mapping[str, float]]  # percent, by training and evaluation
Trained = tuple[str, str, str]  # attention, hashing, positions
LEARNED = 50.0  # percent with the attention of training: below that, a model says nothing of others
HASHED = ("lsh-4", "lsh-2", "lsh-1")


def load() -> tuple[Paper, str]:
    """The paper's table, in percent by training and evaluation, and where it stands."""
    table = read(PUBLISHED)

    def name(cell: str) -> str:
        cell = cell.removeprefix("eval_").removesuffix("_pct")
        return "shared" if cell.lower() == "full" else f"lsh-{cell.removeprefix('LSH').strip('-')}"

    cells = {
        name(row): {name(column): x for column, x in of_row.items()}
        for row, of_row in table.cells.items()
    }
    return cells, table.source


class Accuracies:
    """The accuracies of the words of one length, in percent."""

    def __init__(self, rows: Sequence[Row], base: Hashing):
        """Takes the rows of one length, and what its table has of that which is left open."""
        self.base = str(base)
        self._by_key: dict[tuple[Trained, str, str], dict[int, float]] = {}
        for row in rows:
            trained = row.cell["attention"], row.cell["hashing"], row.cell["positions"]
            name, _, other = row.evaluated.partition(": ")
            key = trained, name, other or row.cell["hashing"]
            self._by_key.setdefault(key, {})[row.cell.seed] = 100 * row.scores["accuracy"]
        self.trained = list(dict.fromkeys(trained for trained, *_ in self._by_key))
        self.hashings = list(dict.fromkeys(hashing for *_, hashing in self._by_key))
        rounds = {n for _, name, _ in self._by_key if (n := rounds_of(name))}
        self.columns = ["shared", *(f"lsh-{n}" for n in sorted(rounds, reverse=True))]

    def model(self, attention: str) -> Trained:
        """The table's training with an attention."""
        return attention, self.base, "sinusoid"

    def of(self, trained: Trained, evaluated: str, hashing: str | None = None) -> dict[int, float]:
        """The accuracies by seed; those with another hashing than in training, if one is given."""
        return self._by_key.get((trained, evaluated, hashing or trained[1]), {})

    def own(self, trained: Trained) -> dict[int, float]:
        """The accuracies with the attention of training, or where none is, with the most rounds."""
        most = next(iter(self.columns[1:]), "")
        return self.of(trained, trained[0]) or self.of(trained, most)

    def learned(self, trained: Trained) -> bool:
        """Whether a training learned the task: `LEARNED` with its own attention, in the mean."""
        own = self.own(trained).values()
        return bool(own) and statistics.fmean(own) >= LEARNED


def _by_word(rows: Sequence[Row], settings: Settings) -> dict[int, Accuracies]:
    groups = group(sorted(rows, key=lambda row: row.cell["word"]), lambda row: row.cell["word"])
    return {word: Accuracies(some, settings.hashing()) for word, some in groups.items()}


def _mean(by_seed: Mapping[int, float]) -> str:
    return spread([*by_seed.values()], ".1f") if by_seed else ""


def answer(rows: Sequence[Row], settings: Settings) -> str:
    """The best and the worst model of the shortest words, with the fewest rounds."""
    word, accuracies = next(iter(_by_word(rows, settings).items()))
    fewest = accuracies.columns[-1]
    scores = {name: accuracies.of(accuracies.model(name), fewest) for name in settings.models}
    ranked = sorted(
        (name for name in scores if scores[name]),
        key=lambda name: -statistics.fmean(scores[name].values()),
    )
    ends = ranked[:1] + ranked[1:][-1:]
    said = ", ".join(f"{_mean(scores[name])} % (trained with {name})" for name in ends)
    return f"accuracy on words of {word} symbols, evaluated with {fewest}: {said}"


def results(rows: Sequence[Row], settings: Settings) -> str:
    """The table of every length of words: trained with × evaluated with."""
    tables = _by_word(rows, settings)
    columns = max((x.columns for x in tables.values()), key=len)
    lines = []
    for (word, accuracies), name in itertools.product(tables.items(), ("shared", *HASHED)):
        values = [_mean(accuracies.of(accuracies.model(name), x)) for x in columns]
        if any(values):
            lines.append([f"{word}", name, *values])
    return markdown_table(["symbols", "trained with", *columns], lines)


def sections(rows: Sequence[Row], settings: Settings) -> Iterator[str]:
    """Figure, and what the literature leaves open."""
    tables = _by_word(rows, settings)
    yield "![Accuracy over rounds at evaluation](rounds.svg)"
    if settings.grid:
        yield from _grid(next(iter(tables.values())), settings.num_symbols)


def _grid(accuracies: Accuracies, num_symbols: int) -> Iterator[str]:
    """The tables of what the literature leaves open."""
    paper, source = load()
    columns = accuracies.columns[1:]
    yield '## What "full" is'
    senses = "; ".join(f"*{name}*: {words}" for name, words in EXACT.items())
    yield (
        f"Every model, evaluated with attention over all pairs in four senses: {senses}. The"
        f" paper's 0.8 % (trained to hash → full) is chance, {100 / num_symbols:.1f} %. c is the"
        " factor of the logits, B the number of buckets over that of chunks; *mask*: a query sees"
        " its own bucket only; *union*: a pair that several rounds show counts once."
    )
    lines = [
        [_name(x, accuracies), *(_mean(accuracies.of(x, sense)) for sense in EXACT)]
        for x in accuracies.trained
    ]
    hashed = [x for x in accuracies.trained if rounds_of(x[0]) and accuracies.learned(x)]
    every = [[y for x in hashed for y in accuracies.of(x, sense).values()] for sense in EXACT]
    if all(every):
        said = [f"{statistics.fmean(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in every]
        lines.append([f"all {len(every[0])} models trained to hash", *said])
    yield markdown_table(["trained with", *EXACT], lines)

    yield "## Trained with attention over all pairs, evaluated with each hashing"
    yield "The reproducibility challenge of 2020 has 1.4 % for full → lsh-8."
    lines = []
    for trained, hashing in itertools.product(accuracies.trained, accuracies.hashings):
        values = [_mean(accuracies.of(trained, x, hashing)) for x in columns]
        if not rounds_of(trained[0]) and any(values):
            lines.append([_name(trained, accuracies), hashing, *values])
    yield markdown_table(["trained with", "evaluated with", *columns], lines)

    yield "## Trained with each hashing"
    lines = [
        [
            _name(x, accuracies, whole=True),
            *(_mean(accuracies.of(x, y)) for y in accuracies.columns),
        ]
        for x in accuracies.trained
        if rounds_of(x[0])
    ]
    yield markdown_table(["trained with", *accuracies.columns], lines)

    yield "## Which setting is nearest to the paper's numbers"
    yield f"Mean distance of a row's lsh columns to the paper's ({source}), in points."
    lines = [
        [row, f"{gap:.1f}", _name(trained, accuracies, whole=True), hashing]
        for row, ranked in nearest(accuracies, paper).items()
        for gap, trained, hashing in ranked[:3]
    ]
    yield markdown_table(["paper's row", "distance", "trained with", "evaluated with"], lines)


def _name(trained: Trained, accuracies: Accuracies, *, whole: bool = False) -> str:
    """A training; without `whole` what is not said of its hashing is as in the table."""
    name, hashing, positions = trained
    parts = [name, *(["N(0, 1) positions"] if positions == "normal" else [])]
    words = hashing.split()
    if not rounds_of(name):
        parts.append(words[0])
    elif whole:
        parts.append(hashing)
    else:
        base = accuracies.base.split()
        parts += [" ".join(x for x, y in zip(words, base, strict=True) if x != y)]
    return ", ".join(filter(None, parts))


def nearest(accuracies: Accuracies, paper: Paper) -> dict[str, list[tuple[float, Trained, str]]]:
    """Per row of the paper, how far each setting's lsh columns are from it, nearest first.

    Returns:
      By the paper's training: (mean |difference| in points, training here, hashing of evaluation).
    """
    ranked: dict[str, list[tuple[float, Trained, str]]] = {}
    columns = accuracies.columns[1:]
    for trained, hashing in itertools.product(accuracies.trained, accuracies.hashings):
        row = trained[0] if rounds_of(trained[0]) else "shared"
        scores = {
            x: accuracies.of(trained, x, hashing).values() for x in columns if x in paper[row]
        }
        if scores and all(scores.values()):
            gaps = [abs(statistics.fmean(x) - paper[row][name]) for name, x in scores.items()]
            ranked.setdefault(row, []).append((statistics.fmean(gaps), trained, hashing))
    return {row: sorted(some, key=lambda entry: entry[0]) for row, some in ranked.items()}


def figure(rows: Sequence[Row], settings: Settings) -> Figure:
    """Accuracy over the rounds of evaluation: a panel a length, a line for each model."""
    tables = _by_word(rows, settings)
    with figure_files.style():
        drawn = Figure(figsize=(1.6 + 3.3 * len(tables), 3.6), layout="constrained")
        panels = drawn.subplots(1, len(tables), sharey=True, squeeze=False)[0]
        ends = []
        for axes, (word, accuracies) in zip(panels, tables.items(), strict=True):
            columns = accuracies.columns[::-1]
            for name in ("shared", *HASHED):
                color, marker = by_rounds(name)
                values = [[*accuracies.of(accuracies.model(name), x).values()] for x in columns]
                at = [i for i, x in enumerate(values) if x]
                if not at:
                    continue
                means = [statistics.fmean(values[i]) for i in at]
                widths = [half_width(values[i]) if len(values[i]) > 1 else 0.0 for i in at]
                ends += [
                    *map(sum, zip(means, widths, strict=True)),
                    *map(float.__sub__, means, widths),
                ]
                axes.errorbar(
                    at, means, widths,
                    color=color, marker=marker, markersize=5, linewidth=1.6, capsize=2,
                    label=f"trained with {name}", clip_on=False,
                )  # fmt: skip
            axes.set_xticks(range(len(columns)), columns)
            axes.set_xlabel("evaluated with")
            axes.set_title(f"Words of {word} symbols")
            axes.grid(axis="y")
        panels[0].set_ylim(figure_files.limits(ends))
        panels[0].set_ylabel("accuracy, second half (%)")
        handles, labels = panels[0].get_legend_handles_labels()
        drawn.legend(
            handles, labels, loc="outside right upper", frameon=False,
            title="mean over seeds;\nbars: 95 % interval",
        )  # fmt: skip
    return drawn
