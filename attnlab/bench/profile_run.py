"""The profiling job: every case of the settings, a row each, then the tables and the figure."""

import contextlib
import dataclasses
import datetime
import json
import sys
import traceback
from pathlib import Path
from typing import TextIO

import jax

from attnlab.bench import environment, inputs, profile_figure, profile_report
from attnlab.bench.case import Case
from attnlab.bench.profile_case import Profile, check, num_buckets_of, profile, to_json
from attnlab.bench.report import PASS_TITLES
from attnlab.bench.settings import Settings
from attnlab.records.folders import fresh_folder

INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C


def run(
    settings: Settings, *, num_buckets: int | None, output_dir: Path, out: TextIO | None = None
) -> int:
    """Profiles into a fresh folder; Ctrl-C keeps what is done and still writes the report.

    Args:
      settings: the sizes; its mechanism is `lsh`, the bare function.
      num_buckets: buckets of a round; None = the library's own choice for each length.
      output_dir: where the fresh folder goes.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0, 130 after Ctrl-C, or 1 where a case failed.

    Raises:
      ValueError: the library refuses these sizes, or the folder cannot be made.
    """
    out = out or sys.stdout
    text = inputs.read(settings.input)
    cases = settings.cases(jax.local_device_count())
    for case in cases:
        if case.passes == cases[0].passes:
            check(case, num_buckets)
    folder = fresh_folder(output_dir, "profile_lsh")
    flags = settings.as_json() | {"num_buckets": num_buckets}
    (folder / "settings.json").write_text(json.dumps(flags, indent=2) + "\n")
    found = environment.describe(text)
    print(f"results: {folder}\n{len(cases)} cases on {found['device']}", file=out, flush=True)
    profiles: list[Profile] = []
    interrupted = False
    try:
        for i, case in enumerate(cases, 1):
            title = f"[{i}/{len(cases)}] n = {case.length}, {PASS_TITLES[case.passes]}"
            print(f"{title} … ", end="", file=out, flush=True)
            row = dataclasses.replace(
                _guarded(case, text, num_buckets, settings.repeats, folder / "errors.log"),
                environment=found,
                flags=flags,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            profiles.append(row)
            with open(folder / "results.jsonl", "a", encoding="utf-8") as file:
                file.write(to_json(row) + "\n")
            print(profile_report.line(row), file=out, flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: writing the report of what is done", file=out, flush=True)
    profile_figure.save(profiles, folder)
    report = profile_report.markdown(profiles, planned=len(cases))
    (folder / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{profile_report.tables(profiles)}", file=out)
    print(f"\nreport: {folder / 'report.md'}", file=out, flush=True)
    if interrupted:
        return INTERRUPTED
    return int(any(row.status == "failed" for row in profiles))


def _guarded(
    case: Case, text: inputs.Text, num_buckets: int | None, repeats: int, log: Path
) -> Profile:
    """`profile`, with whatever it raises as a row."""
    try:
        return profile(case, text, num_buckets=num_buckets, repeats=repeats)
    except Exception as error:  # noqa: BLE001 - a case's failure is a row; the others go on
        with open(log, "a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            traceback.print_exc()
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Profile(case, num_buckets_of(case, num_buckets), "failed", message)
