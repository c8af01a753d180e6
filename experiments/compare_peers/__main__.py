"""The command line of `compare_peers`, and its report."""

from collections.abc import Mapping, Sequence

from attnlab.bench import trends
from attnlab.bench.case import Case, Result
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
        markdown=lambda done: text(done, parts),
        variables={"JAX_PLATFORMS": "cpu"},  # where torch runs
    )


def text(done: SoFar[Result], parts: Mapping[str, Sequence[Case]]) -> str:
    """The whole report of a run as far as it is done."""
    busy = trends.describe_busy(done.rows)
    sections = ["# attnlab and its peers", f"**{busy}.**" if busy else "", done.how_much("cases")]
    sections += report.ratios(done.rows)
    for name, cases in parts.items():
        results = [result for result in done.rows if result.case in cases]
        results.sort(key=lambda result: cases.index(result.case))  # some are of a row before
        for dtype in dict.fromkeys(result.case.dtype for result in results):
            rows = [result for result in results if result.case.dtype == dtype]
            sections.append(f"## {name}, {_sizes(rows[0].case)}")
            sections += [*report.by_row(rows), *report.accuracy(rows)]
    sections += ["## Cases without a result", report.missing(done.rows)]
    sections += ["## How it was measured", _METHOD, report.method(done.rows)]
    return document(*sections, done.missing, done.origin)


def _sizes(case: Case) -> str:
    causal = "causal" if case.causal else "not causal"
    layers = f", {case.num_layers} layers" if case.num_layers else ""
    batch = f", batch {case.batch}" if case.batch > 1 else ""
    kept = ", freed memory kept" if case.keep_memory else ""
    return f"{case.num_heads} × {case.head_dim}, {case.dtype}, {causal}{layers}{batch}{kept}"


_METHOD = (
    "No other library computes LSH attention with strict causality, and each hashes in its own "
    "way, which is timed too: between LSH implementations, and between LSH and exact attention, "
    "values are not compared. Tests compare the presets `TRAX` and `LUCIDRAINS` with theirs. A "
    "training step is the forward and the backward pass of a model and Adam's update. Byte models "
    "of LSH layers, ours strictly causal, begin with parameters of their own. Translating models "
    "have the same: the losses of the first five steps, and log p of what a search finds, were "
    "compared first. No translation ends before n tokens, as many as its source has."
)


if __name__ == "__main__":
    command_line.start(main)
