"""The report of `inspect_lsh`: answers, tables and figures, all of them functions of the rows."""

from collections.abc import Iterator, Sequence

from attnlab.bench.case import PASS_TITLES, PASSES, Case
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import duration
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.profile import STAGES, Profile
from experiments.inspect_lsh.quality import Quality, by_line, rounds_needed
from experiments.inspect_lsh.settings import Settings

LISTED = 8  # instructions in a table
MEASURES = {  # field -> its column, and what it is
    "captured_mass": ("mass", "share of full attention's weight on keys that some round shows"),
    "top_k_recall": ("recall", "share of the keys of largest weight that some round shows"),
    "relative_error": ("error", "error of the context, relative to full attention's"),
    "visible_pairs": ("pairs", "share of all pairs that is shown: the mass of keys at random"),
    "visible_same_bucket": ("same bucket", "share of the pairs of one bucket that is shown"),
    "lonely": ("lonely", "share of the queries that see no key"),
    "largest_bucket": ("largest bucket", "share of all tokens that are in it"),
}
Rows = Sequence[Quality | Beside | Profile]


def markdown(done: SoFar[Quality | Beside | Profile], settings: Settings) -> str:
    """The whole report of a run as far as it is done."""
    quality, profiles, beside = of_quality(done.rows), of_profile(done.rows), of_beside(done.rows)
    return document(
        "# LSH attention: what it sees, and where its time goes",
        *(f"**{answer}**" for answer in answers(done.rows, settings)),
        done.how_much("rows"),
        *(_quality(quality, settings) if quality else ()),
        *(_beside(quality, beside) if quality and beside else ()),
        *(_profile(profiles) if profiles else ()),
        done.missing,
        done.origin,
    )


def of_quality(rows: Rows) -> list[Quality]:
    """The rows of the part quality."""
    return [row for row in rows if isinstance(row, Quality)]


def of_beside(rows: Rows) -> list[Beside]:
    """The rows of other attention."""
    return [row for row in rows if isinstance(row, Beside)]


def of_profile(rows: Rows, passes: Sequence[str] = PASSES, *, ok: bool = False) -> list[Profile]:
    """The rows of the part profile, lengths rising; with `ok` those that ran."""
    some = [row for row in rows if isinstance(row, Profile) and row.case.passes in passes]
    return sorted(
        (row for row in some if row.status == "ok" or not ok), key=lambda row: row.case.length
    )


def answers(rows: Rows, settings: Settings) -> Iterator[str]:
    """A line for each part: the rounds that the base needs, and the largest stage."""
    if quality := of_quality(rows):
        some = next(iter(by_line(quality).values()))
        row = rounds_needed(some, settings.target_mass) or some[-1]
        reached = row.means["captured_mass"]
        word = "" if reached >= settings.target_mass else "more than "
        yield (
            f"Rounds for {settings.target_mass:.0%} of the attention mass: {word}"
            f"{row.num_hashes}, which captured {reached:.1%}."
        )
    for passes in reversed(PASSES):
        if profiles := of_profile(rows, [passes], ok=True):
            last = profiles[-1]
            stage = max(STAGES, key=last.shares.__getitem__)
            yield (
                f"Largest stage of {PASS_TITLES[passes]} at n = {last.case.length}: {stage}, "
                f"{last.shares[stage]:.1%} of the time."
            )
            return


def _quality(rows: Sequence[Quality], settings: Settings) -> Iterator[str]:
    target = settings.target_mass
    lines = by_line(rows)
    base, of_base = next(iter(lines.items()))
    yield "## What the rounds see"
    yield "![mass, recall and error over rounds](quality.svg)"
    cells = []
    for line, some in lines.items():
        found, last = rounds_needed(some, target), some[-1]
        row = found or last
        means, worst = row.means, min(map(min, row.per_head["captured_mass"]))
        rounds = str(found.num_hashes) if found else f"> {last.num_hashes}"
        shares = [f"{means['captured_mass']:.1%}", f"{worst:.1%}"]
        compared = str(row.keys_compared)
        cells.append([line.title(), rounds, compared, *shares, f"{means['relative_error']:.3f}"])
    header = ["line", f"rounds for {target:.0%}", "keys compared", "mass", "worst head", "error"]
    yield markdown_table(header, cells)
    yield markdown_table(
        ["line", "rounds", "keys compared", *(column for column, _ in MEASURES.values())],
        [
            [line.title(), str(row.num_hashes), str(row.keys_compared)]
            + [f"{row.means[name]:.3f}" for name in MEASURES]
            for line, some in lines.items()
            for row in some
        ],
    )
    meanings = [[column, meaning] for column, meaning in MEASURES.values()]
    keys = ["keys compared", "by a query: rounds × 2 chunks"]
    yield markdown_table(["column", "mean over queries, layers and heads"], [*meanings, keys])
    yield "![bucket sizes](buckets.svg)"
    layers = of_base[0].per_head["captured_mass"]
    names = [f"{i}.{n}" for i, layer in enumerate(layers) for n in range(len(layer))]
    yield f"### Mass of each layer.head: {base.title()}"
    yield markdown_table(
        ["rounds", *names],
        [
            [str(row.num_hashes), *(f"{x:.2f}" for x in sum(row.per_head["captured_mass"], []))]
            for row in of_base
        ],
    )


def _beside(quality: Sequence[Quality], rows: Sequence[Beside]) -> Iterator[str]:
    """Other attention among the rounds of the base line, fewest pairs first."""
    base, of_base = next(iter(by_line(quality).items()))
    yield f"### Other attention, and LSH with {base.title()}"
    yield "![mass over pairs](pairs.svg)"
    names = ("visible_pairs", "captured_mass", "top_k_recall", "relative_error")
    every = [(f"lsh-{row.num_hashes}", row.means) for row in of_base]
    every += [(row.mechanism, row.means) for row in rows]
    every.sort(key=lambda pair: pair[1]["visible_pairs"])
    header = ["attention", *(MEASURES[name][0] for name in names)]
    yield markdown_table(
        header, [[title, *(f"{means[x]:.3f}" for x in names)] for title, means in every]
    )


def _profile(rows: Sequence[Profile]) -> Iterator[str]:
    yield "## Where the time goes"
    if of_profile(rows, ok=True):
        yield "![shares over length](shares.svg)"
    for passes in PASSES:
        if some := of_profile(rows, [passes]):
            yield f"### {PASS_TITLES[passes].capitalize()}"
            yield table_of_stages(some)
    for passes in PASSES:
        if some := of_profile(rows, [passes], ok=True):
            length = some[-1].case.length
            yield f"### Largest instructions: {PASS_TITLES[passes]}, n = {length}"
            yield _largest(some[-1])


def table_of_stages(profiles: Sequence[Profile]) -> str:
    """A row per length: the median time, the fastest under the profiler, and of it the stages."""
    header = ["n", "buckets", "time", "traced", *STAGES]
    rows = []
    for profile in profiles:
        cells = [profile.message or profile.status, *[""] * (1 + len(STAGES))]
        if profile.status == "ok":
            stages = (f"{duration(profile.stages[s])} {profile.shares[s]:.1%}" for s in STAGES)
            cells = [duration(profile.median_seconds), duration(profile.traced_seconds), *stages]
        rows.append([str(profile.case.length), str(profile.num_buckets), *cells])
    return markdown_table(header, rows)


def title(case: Case) -> str:
    """A case as the terminal shows it."""
    return f"n = {case.length}, {PASS_TITLES[case.passes]}"


def line_of_quality(rows: Sequence[Quality | Beside]) -> str:
    """The new rows of a line, for the terminal."""
    return "mass " + ", ".join(f"{row.means['captured_mass']:.3f}" for row in rows)


def line_of_profile(profile: Profile) -> str:
    """One row as a line for the terminal."""
    if profile.status != "ok":
        return f"{profile.status.replace('_', ' ')}: {profile.message}"
    shares = (f"{stage} {share:.0%}" for stage, share in profile.shares.items())
    return f"{duration(profile.median_seconds)}: {', '.join(shares)}"


def _largest(profile: Profile) -> str:
    """A table of the largest instructions, and of the largest that belong to no stage."""
    other = [instruction for instruction in profile.instructions if instruction["stage"] == "other"]
    listed = [*profile.instructions[:LISTED], *other[:LISTED]]
    total = sum(profile.stages.values())
    rows = [
        [
            instruction["name"],
            instruction["stage"],
            duration(instruction["seconds"]),
            f"{instruction['seconds'] / total:.1%}",
            _end_of(instruction["op_name"]),
        ]
        for instruction in {instruction["name"]: instruction for instruction in listed}.values()
    ]
    return markdown_table(["instruction", "stage", "time", "share", "from"], rows)


def _end_of(op_name: str) -> str:
    """The end of the path that says where an instruction comes from, without loops."""
    loops = ("while", "body", "closed_call", "eval_jaxpr")
    steps = [step for step in op_name.split("/") if step not in loops]
    return "/".join(steps[-3:]) or "(the compiler)"
