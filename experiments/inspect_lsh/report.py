"""The report of `inspect_lsh`: its answer and its tables, all of them functions of the rows."""

from collections.abc import Iterator, Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.quality import Quality, by_line, rounds_needed
from experiments.inspect_lsh.settings import Settings

MEASURES = {  # field -> its column, and what it is
    "captured_mass": ("mass", "share of full attention's weight on keys that some round shows"),
    "top_k_recall": ("recall", "share of the keys of largest weight that some round shows"),
    "relative_error": ("error", "error of the context, relative to full attention's"),
    "visible_pairs": ("pairs", "share of all pairs that is shown: the mass of keys at random"),
    "visible_same_bucket": ("same bucket", "share of the pairs of one bucket that is shown"),
    "lonely": ("lonely", "share of the queries that see no key"),
    "largest_bucket": ("largest bucket", "share of all tokens that are in it"),
}
MeasuredRows = Sequence[Quality | Beside]


def markdown(done: SoFar[Quality | Beside], settings: Settings) -> str:
    """The whole report of a run as far as it is done."""
    quality, beside = of_quality(done.rows), of_beside(done.rows)
    found = answer(done.rows, settings)
    return document(
        "# LSH attention: what its hash rounds see",
        f"**{found}**" if found else "",
        done.how_much("rows"),
        *(_quality(quality, settings) if quality else ()),
        *(_tabulate_beside(quality, beside) if quality and beside else ()),
        done.missing,
        done.origin,
    )


def of_quality(rows: MeasuredRows) -> list[Quality]:
    """The rows of LSH attention."""
    return [row for row in rows if isinstance(row, Quality)]


def of_beside(rows: MeasuredRows) -> list[Beside]:
    """The rows of other attention."""
    return [row for row in rows if isinstance(row, Beside)]


def answer(rows: MeasuredRows, settings: Settings) -> str:
    """The rounds that the base needs; "" = nothing of it is known yet."""
    quality = of_quality(rows)
    if not quality:
        return ""
    some = next(iter(by_line(quality).values()))
    row = rounds_needed(some, settings.target_mass) or some[-1]
    reached = row.means["captured_mass"]
    word = "" if reached >= settings.target_mass else "more than "
    return (
        f"Rounds for {settings.target_mass:.0%} of the attention mass: {word}"
        f"{row.num_hashes}, which captured {reached:.1%}."
    )


def _quality(rows: Sequence[Quality], settings: Settings) -> Iterator[str]:
    target = settings.target_mass
    lines = by_line(rows)
    base, of_base = next(iter(lines.items()))
    yield "## What the rounds see"
    yield "![mass, recall and error over rounds](quality.svg)"
    cells = []
    for line, some in lines.items():
        found = rounds_needed(some, target)
        most_rounds = some[-1]
        row = found or most_rounds
        means = row.means
        worst = min(map(min, row.per_head["captured_mass"]))
        rounds = str(found.num_hashes) if found else f"> {most_rounds.num_hashes}"
        shares = [f"{means['captured_mass']:.1%}", f"{worst:.1%}"]
        compared = str(row.keys_compared)
        cells.append([str(line), rounds, compared, *shares, f"{means['relative_error']:.3f}"])
    header = ["line", f"rounds for {target:.0%}", "keys compared", "mass", "worst head", "error"]
    yield markdown_table(header, cells)
    yield markdown_table(
        ["line", "rounds", "keys compared", *(column for column, _ in MEASURES.values())],
        [
            [str(line), str(row.num_hashes), str(row.keys_compared)]
            + [f"{row.means[name]:.3f}" for name in MEASURES]
            for line, some in lines.items()
            for row in some
        ],
    )
    meanings = [[column, meaning] for column, meaning in MEASURES.values()]
    keys = ["keys compared", "by a query: rounds × 2 chunks"]
    yield markdown_table(["column", "mean over queries, layers and heads"], [*meanings, keys])
    layers = of_base[0].per_head["captured_mass"]
    names = [f"{i}.{n}" for i, layer in enumerate(layers) for n in range(len(layer))]
    yield f"### Mass of each layer.head: {base}"
    yield markdown_table(
        ["rounds", *names],
        [
            [str(row.num_hashes), *(f"{x:.2f}" for x in sum(row.per_head["captured_mass"], []))]
            for row in of_base
        ],
    )


def _tabulate_beside(quality: Sequence[Quality], rows: Sequence[Beside]) -> Iterator[str]:
    """Other attention among the rounds of the base line, fewest pairs first."""
    base, of_base = next(iter(by_line(quality).items()))
    yield f"### Other attention, and LSH with {base}"
    yield "![mass over pairs](pairs.svg)"
    names = ("visible_pairs", "captured_mass", "top_k_recall", "relative_error")
    every = [(f"lsh-{row.num_hashes}", row.means) for row in of_base]
    every += [(row.mechanism, row.means) for row in rows]
    every.sort(key=lambda pair: pair[1]["visible_pairs"])
    header = ["attention", *(MEASURES[name][0] for name in names)]
    yield markdown_table(
        header, [[title, *(f"{means[x]:.3f}" for x in names)] for title, means in every]
    )


def line_of_rows(rows: MeasuredRows) -> str:
    """The new rows of a line, for the terminal."""
    return "mass " + ", ".join(f"{row.means['captured_mass']:.3f}" for row in rows)
