"""The command line of `compare_peers`, and what it does."""

import importlib.util
from collections.abc import Sequence

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import compare_peers
from experiments.compare_peers import plan, report
from experiments.compare_peers.measure import measure
from experiments.compare_peers.pairs import PACKAGES, Outcome, Pair
from experiments.compare_peers.settings import Settings


def main(argv: list[str]) -> int:
    """Parses the flags and compares."""
    return command_line.run(argv, Settings, run, doc=compare_peers.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Compares the pairs, each side in a process of its own.

    Raises:
      Invalid: a package that a pair needs is not installed, or the folder cannot be made.
    """
    pairs = plan.pairs(settings.rows)
    rows: Rows[Pair, Outcome] = Rows(folder, lambda outcome: outcome.pair, [Outcome])
    done = {pair for pair, one in rows.kept.items() if _done(one.row)}
    require_packages([pair for pair in pairs if pair not in done])

    def compared(pair: Pair) -> list[Outcome]:
        found = measure(pair, repeats=settings.repeats, seconds=settings.seconds)
        rows.environment = rows.environment or found.environment
        folder.note(found.errors)
        return [found.outcome]

    def reported() -> loop.Report:
        told = so_far(rows, {_title(pair): [pair] for pair in pairs}, settings)
        return loop.Report(report.markdown(told), said=report.tables(told.rows))

    job = loop.Job(
        unit="pairs",
        measure=compared,
        lost=lambda pair, message: Outcome(pair, "failed", message),
        done=_done,
        title=_title,
        line=lambda found: report.line(found[0]),
        report=reported,
    )
    return loop.run(job, pairs, folder, rows, where=provenance.processor())


def require_packages(pairs: Sequence[Pair]) -> None:
    """Refuses to begin where the package of a peer is not installed.

    Raises:
      Invalid: a package is missing; the message says which, and how to install it.
    """
    needed = dict.fromkeys(PACKAGES[p.peer.program] for p in pairs if p.peer.program in PACKAGES)
    missing = [name for name in needed if not importlib.util.find_spec(name.replace("-", "_"))]
    if missing:
        raise Invalid(
            f"not installed: {', '.join(missing)}; they are in the extra compat, which "
            "`launch/local --extra=compat compare_peers` installs (or choose other --rows)"
        )


def _title(pair: Pair) -> str:
    return f"{pair.row}: {report.title(pair)}"


def _done(outcome: Outcome) -> bool:
    return outcome.status == "ok"


if __name__ == "__main__":
    command_line.start(main)
