"""The command line of `profile_lsh`, and what it does."""

from attnlab.bench import environment, inputs
from attnlab.bench.case import PASS_TITLES, Case
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import profile_lsh
from experiments.profile_lsh import figure, report
from experiments.profile_lsh.profile import Profile, check, num_buckets_of, profile
from experiments.profile_lsh.settings import Settings


def main(argv: list[str]) -> int:
    """Parses the flags and profiles."""
    return command_line.run(argv, Settings, run, doc=profile_lsh.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Profiles each case in this process.

    Raises:
      Invalid: the library refuses these sizes, or the folder cannot be made.
    """
    text = inputs.read(settings.input)
    cases = settings.cases()
    _check(cases, settings)
    rows: Rows[Case, Profile] = Rows(folder, lambda row: row.case, [Profile], derived=["shares"])
    rows.environment = environment.describe(text)

    def measure(case: Case) -> list[Profile]:
        buckets, repeats = settings.num_buckets, settings.repeats
        return [profile(case, text, num_buckets=buckets, repeats=repeats)]

    def lost(case: Case, message: str) -> Profile:
        return Profile(case, num_buckets_of(case, settings.num_buckets), "failed", message)

    def reported() -> loop.Report:
        told = so_far(rows, {_title(case): [case] for case in cases}, settings)
        return loop.Report(
            report.markdown(told), {"shares": figure.draw(told.rows)}, said=report.tables(told.rows)
        )

    job = loop.Job(
        unit="cases",
        measure=measure,
        lost=lost,
        done=lambda row: row.status != "failed",
        title=_title,
        line=lambda found: report.line(found[0]),
        report=reported,
    )
    return loop.run(job, cases, folder, rows, where=provenance.devices_of(rows.environment))


def _title(case: Case) -> str:
    return f"n = {case.length}, {PASS_TITLES[case.passes]}"


def _check(cases: list[Case], settings: Settings) -> None:
    for case in {case.length: case for case in cases}.values():
        try:
            check(case, settings.num_buckets)
        except ValueError as error:
            raise Invalid(str(error)) from None


if __name__ == "__main__":
    command_line.start(main)
