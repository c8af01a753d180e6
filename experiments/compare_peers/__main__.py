"""The command line of `compare_peers`, and its report."""

from collections.abc import Mapping, Sequence

from attnlab.bench.case import ACCURACY, PASS_TITLES, Case, Result, passes_of
from attnlab.bench.tables import over_axis
from attnlab.runs import command_line
from attnlab.runs.folder import Folder
from attnlab.runs.report import SoFar, document
from experiments import compare_peers
from experiments.compare_lengths import report
from experiments.compare_lengths.run import compare
from experiments.compare_peers.settings import Settings


def main(argv: list[str]) -> int:
    """Parses the flags and compares."""
    return command_line.run(argv, Settings, run, doc=compare_peers.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Measures the cases of all rows.

    Raises:
      Invalid: a package that a case needs is not installed, or the folder cannot be made.
    """
    parts = settings.parts()
    cases = list(dict.fromkeys(case for some in parts.values() for case in some))
    return compare(
        settings.limits(),
        folder,
        cases,
        asked=settings,
        markdown=lambda told: text(told, parts),
        variables={"JAX_PLATFORMS": "cpu"},  # where torch runs
    )


def text(told: SoFar[Result], parts: Mapping[str, Sequence[Case]]) -> str:
    """The whole report of a run as far as it is done."""
    sections = ["# attnlab and its peers", told.how_much("cases")]
    for name, cases in parts.items():
        done = [result for result in told.rows if result.case in cases]
        for dtype in dict.fromkeys(result.case.dtype for result in done):
            rows = [result for result in done if result.case.dtype == dtype]
            sections += [f"## {name}, {_sizes(rows[0].case)}", *tables(rows)]
    sections += ["## Cases without a result", report.missing(told.rows)]
    sections += ["## How it was measured", _METHOD, report.method(told.rows)]
    return document(*sections, told.missing, told.origin)


def tables(rows: Sequence[Result]) -> list[str]:
    """Times, memory, their ratios and distances of one row."""
    made = []
    for passes in passes_of(rows):
        for quantity in ("time", "memory") if passes != ACCURACY else ():
            made += [f"{PASS_TITLES[passes].capitalize()}, {quantity}:"]
            made += [over_axis(rows, passes, quantity)]
    return made + report.against(rows) + report.accuracy(rows)


def _sizes(case: Case) -> str:
    causal = "causal" if case.causal else "not causal"
    layers = f", {case.num_layers} layers" if case.num_layers else ""
    return f"{case.num_heads} × {case.head_dim}, {case.dtype}, {causal}{layers}"


_METHOD = (
    "No other library computes LSH attention with strict causality, and each hashes in its own "
    "way, which is timed too: between LSH implementations, and between LSH and exact attention, "
    "values are not compared. Tests compare the presets `TRAX` and `LUCIDRAINS` with theirs. A "
    "training step is the forward and the backward pass of a byte model of LSH layers and Adam's "
    "update, "
    "ours strictly causal; the two begin with parameters of their own."
)


if __name__ == "__main__":
    command_line.start(main)
