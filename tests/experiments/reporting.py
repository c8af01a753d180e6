"""A kept run is reported again from its rows, as `--resume` of a finished run does.

    python -m tests.experiments.reporting [NAME] FOLDER…

writes report.md, and the other texts that the folders have, again; no row is measured. NAME is the
experiment of folders that have no report yet.
"""

import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnlab.bench import environment, inputs
from attnlab.mechanisms import own
from attnlab.runs import loop, provenance
from attnlab.runs.folder import REPORT, ROWS, Folder
from attnlab.studies import run as studies
from attnlab.studies.study import Study
from experiments.check import __main__ as check
from experiments.compare_lengths import run as compare_lengths
from experiments.inspect_lsh import model
from experiments.tables import __main__ as tables
from experiments.translate import report as translate_report
from tests.experiments.figures import describe

FIGURES = "figures.txt"  # of runs that are kept for tests alone
WHERE = re.compile(r"## Where\n\n    launch/local (\w+)[^\n]*\n\n\| +\| +where \|\n")


def experiment_of(folder: Path) -> str:
    """The name of the experiment that a report is of."""
    (name,) = WHERE.findall((folder / REPORT).read_text())
    return name


def report_again(name: str, folder: Path) -> loop.Report:
    """The report of an experiment from the rows and the settings of a folder alone.

    Its data, its machine and its compilers need not be here, and nothing is written.
    """
    program = importlib.import_module(f"experiments.{name}.__main__")
    settings_class = importlib.import_module(f"experiments.{name}.settings").Settings
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    with pytest.MonkeyPatch.context() as patch:
        # What is checked before a run, and what it says of this machine, is of no interest.
        patch.setattr(settings_class, "__post_init__", lambda self: None)
        patch.setattr(own, "digests", lambda *_: {})
        patch.setattr(Folder, "claim", lambda self: None)
        there = rows[-1]["environment"]
        patch.setattr(provenance, "describe", lambda *_: dict(there))
        kept = Folder.kept(name, folder)
        settings = settings_class.from_json(kept.settings)
        study = study_of(program)
        if study is not None:
            return _report_of_study(study, settings, kept, rows, patch)
        return _report_of_run(name, program, settings, kept, there, patch)


def study_of(program: ModuleType) -> type[Study[Any, Any]] | None:
    """The study of an experiment that trains."""
    classes = [one for one in vars(program).values() if isinstance(one, type)]
    found = [one for one in classes if issubclass(one, Study) and one is not Study]
    return found[0] if found else None


def _report_of_study(
    kind: type[Study[Any, Any]],
    settings: Any,
    folder: Folder,
    rows: Sequence[Mapping[str, Any]],
    patch: pytest.MonkeyPatch,
) -> loop.Report:
    pretrainings = [row["cell"]["axes"].get("pretraining") for row in rows]
    data = SimpleNamespace(digest="", models=dict.fromkeys(filter(None, pretrainings)))
    patch.setattr(kind, "open", lambda settings: data)
    patch.setattr(studies, "prepare", lambda settings, sizes: settings.over_devices(()))
    if folder.name == "translate":
        patch.setattr(translate_report, "alignment_figure", lambda *_, **__: "drawn")  # seconds
        # Which pairs are drawn, its data say.
        evaluated = list(dict.fromkeys(row["evaluated"] for row in rows))
        patch.setattr(kind, "evaluations", lambda self, cell: evaluated)
    return studies.Run(kind, settings, folder).report()


def _report_of_run(
    name: str,
    program: ModuleType,
    settings: Any,
    folder: Folder,
    there: Mapping[str, Any],
    patch: pytest.MonkeyPatch,
) -> loop.Report:
    reports: list[loop.Report] = []

    def report(job: loop.Job[Any, Any], *_: Any, **__: Any) -> int:
        reports.append(job.report())
        return 0

    patch.setattr(loop, "run", report)
    match name:
        case "compare_lengths" | "compare_peers":
            here = {"devices": 1, "cpus": 1, "platform": "cpu", "versions": {}, "untested": []}
            runner = SimpleNamespace(environment={**here, **there})
            patch.setattr(compare_lengths, "Runner", lambda **_: contextlib.nullcontext(runner))
            patch.setattr(importlib.util, "find_spec", lambda name: None)  # no peer is needed
        case "check":
            patch.setattr(check, "_figure", lambda name: _figure_there(folder.path, name))
        case "inspect_lsh":
            patch.setattr(inputs, "read", lambda path: None)
            patch.setattr(environment, "describe", lambda text: dict(there))
            patch.setattr(model, "split", lambda text, length: (None, None))
        case _:
            assert program is tables
    if name == "compare_lengths":
        compare_lengths.compare(settings, folder)
    else:
        program.run(settings, folder)
    return reports[-1]


def _figure_there(folder: Path, name: str) -> Any:
    """Stands for the figure of a mechanism, which is no function of rows."""
    return "drawn" if (folder / f"{check._file(name)}.svg").exists() else None


def texts_of(report: loop.Report, folder: Path) -> dict[str, str]:
    """The report, and the other texts that its folder has, by the names of their files."""
    texts = {REPORT: report.markdown}
    texts |= {name: text for name, text in report.files.items() if (folder / name).exists()}
    if (folder / FIGURES).exists():
        texts[FIGURES] = describe(report.figures)
    return texts


def main(words: Sequence[str]) -> None:
    """Writes the texts of folders again."""
    folders = [Path(word) for word in words if Path(word).is_dir()]
    named = [word for word in words if not Path(word).is_dir()]
    for folder in folders:
        report = report_again(named[0] if named else experiment_of(folder), folder)
        for name, text in texts_of(report, folder).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
