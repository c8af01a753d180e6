"""Published tables and what of ours stands beside each: read from the TOML files of this folder.

A file is a paper. Of a table, `file` is in `experiments/published`, `column` is its column, or
columns by title, and `study` is one of `studies.toml`. `like` names a table of the same file whose
keys hold where this one has none. A row is what a table's keys are for all its rows, and its own. A
row that the paper does not have says `published = false`. `collapsed` has the scores below which a
row has not learned the task, and is not compared.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from attnlab.runs.errors import Invalid
from attnlab.runs.published import read
from experiments.tables.lengths import LengthTable
from experiments.tables.measured import Quantity, RatioTable
from experiments.tables.runs import Command
from experiments.tables.table import PublishedTable
from experiments.tables.trained import ScoreTable, Training

__all__ = ["PUBLISHED", "SCALES", "Source", "all_tables", "parse_toml", "read_tables"]

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER.parents[1] / "published"
SCALES = ("cpu", "gpu", "paper")
STUDIES = "studies.toml"
_NEEDED = ("title", "file", "column", "rows")
_TABLE = {*_NEEDED, "keys", "note", "study", "like"}
_RUN = {"model", "fields", "flags", "cell", "evaluated", "before", "data", *SCALES}
_TRAINED = _TABLE | _RUN | {"scales", "compares", "score", "base", "tie", "less", "collapsed"}
_TRAINED_ROW = _RUN | {"not_comparable", "published"}
_MEASURED = _TABLE | {"flags", "quantity", "base", "lengths"}
_MEASURED_ROW = {"mechanism", "not_comparable"}
_Keys = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """A table as a file has it, for the errors that name its lines."""

    path: Path
    name: str

    def refuse(self, key: str, rule: str, got: Any, remedy: str) -> NoReturn:
        """Refuses what stands at a key.

        Raises:
          Invalid: always.
        """
        raise Invalid(f"{self.path.name}:{self._line(key)}: {rule}; got {got}; {remedy}")

    def require(self, key: str, name: str, valid: Collection[str], subject: str) -> None:
        """Refuses a name that is none of the valid ones."""
        if name not in valid:
            remedy = f"give {', '.join(sorted(valid))}"
            self.refuse(key, f"{subject} must be known", repr(name), remedy)

    def _line(self, key: str) -> int:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        head = re.compile(rf"\[{re.escape(self.name)}[.\]]")
        first = next(i for i, line in enumerate(lines) if head.match(line))
        named = re.compile(rf'(^|[\s.{{"\[]){re.escape(key)}"?\s*[=.\]]')
        # A key that is inherited stands elsewhere: then the table's head is its line.
        return next((i for i in range(first, len(lines)) if named.search(lines[i])), first) + 1


def read_tables(path: Path, studies: _Keys) -> dict[str, PublishedTable]:
    """The tables of a file.

    Args:
      path: path of the file.
      studies: content of `studies.toml`.

    Raises:
      Invalid: the file is not TOML, lacks a key, or has a study, a flag, a score, a key or a row
        that there is not.
    """
    file = parse_toml(path)
    return {name: _read_table(Source(path, name), file, studies) for name in file}


@functools.cache
def all_tables() -> dict[str, PublishedTable]:
    """The tables of all files, by name; read at the first call.

    Raises:
      Invalid: a file is not valid.
    """
    studies = parse_toml(FOLDER / STUDIES)
    paths = sorted(path for path in FOLDER.glob("*.toml") if path.name != STUDIES)
    return {name: table for path in paths for name, table in read_tables(path, studies).items()}


def parse_toml(path: Path) -> _Keys:
    """The content of a TOML file.

    Raises:
      Invalid: the file is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path.name}: {error}") from None


def _read_table(source: Source, file: _Keys, studies: _Keys) -> PublishedTable:
    own = file[source.name]
    base: _Keys = {}
    if "like" in own:
        source.require("like", own["like"], file, "the table that it is like")
        base = file[own["like"]]
    keys = base | own
    study = str(keys.get("study"))
    source.require("study", study, studies, "a study")
    is_measured = study == "compare_lengths"
    for key in own:
        source.require(key, key, _MEASURED if is_measured else _TRAINED, "a key of a table")
    missing = [key for key in _NEEDED if key not in keys]
    if missing:
        rule = "a table has a title, a file, a column and rows"
        source.refuse(source.name, rule, f"no {missing[0]}", "add it")
    for row, of_row in keys["rows"].items():
        for key in of_row:
            valid = _MEASURED_ROW if is_measured else _TRAINED_ROW
            source.require(row, key, valid, f"a key of the row {row!r}")
    if is_measured:
        table: PublishedTable = _read_measured(source, keys, studies[study])
    else:
        table = _read_trained(source, keys, studies[study])
    _require_printed(source, table, keys)
    return table


def _read_measured(source: Source, keys: _Keys, study: _Keys) -> RatioTable:
    flags = _format_flags(source, "flags", study["experiment"], keys["flags"])
    (base,) = keys["base"].items()
    return RatioTable(
        **_select_fields(RatioTable, keys)
        | {
            "run": Command(study["experiment"], flags, trains=False),
            "quantity": Quantity(**keys["quantity"]),
            "base": base,
            "lines": {row: x["mechanism"] for row, x in keys["rows"].items()},
            "not_comparable": _read_reasons(keys),
        }
    )


def _read_trained(source: Source, keys: _Keys, study: _Keys) -> LengthTable | ScoreTable:
    scales = keys.get("scales", [scale for scale in SCALES if scale in study])
    trainings = {}
    for row, of_row in keys["rows"].items():
        levels = (study, keys, of_row)
        runs = {scale: _read_command(source, row, _merge_at(scale, levels)) for scale in scales}
        merged = _merge((keys, of_row))
        trainings[row] = Training(runs, merged.get("cell", {}), merged.get("evaluated"))
    compares = keys.get("compares", "size")
    source.require("compares", compares, ("courses", "side", "size"), "what it compares")
    if compares == "courses":
        return LengthTable(**_select_fields(LengthTable, keys) | {"trainings": trainings})
    score = keys.get("score", ScoreTable.score)
    source.require("score", score, study["scores"], "a score of the study")
    for name in keys.get("collapsed", {}):
        source.require("collapsed", name, study["scores"], "a score of the study")
    return ScoreTable(
        **_select_fields(ScoreTable, keys)
        | {
            "trainings": trainings,
            "measures": study["scores"],
            "sizes": compares == "size",
            "not_comparable": _read_reasons(keys),
        }
    )


def _select_fields(kind: type[PublishedTable], keys: _Keys) -> _Keys:
    """Those of a table's keys that are fields of its kind as they stand."""
    fields = {field.name for field in dataclasses.fields(kind)}
    return {key: x for key, x in keys.items() if key in fields}


def _read_reasons(keys: _Keys) -> dict[str, str]:
    rows = keys["rows"].items()
    return {row: x["not_comparable"] for row, x in rows if "not_comparable" in x}


def _merge_at(scale: str, levels: Collection[_Keys]) -> _Keys:
    """What levels have for a scale, each over the ones before."""
    return _merge([part for level in levels for part in (level, level.get(scale, {}))])


def _merge(levels: Collection[_Keys]) -> _Keys:
    merged: _Keys = {}
    for level in levels:
        for key, x in level.items():
            merged[key] = _merge((merged.get(key, {}), x)) if isinstance(x, dict) else x
    return merged


def _read_command(source: Source, row: str, keys: _Keys) -> Command:
    """The run of a row, and of what it begins with."""
    data, before = keys.get("data"), keys.get("before")
    flags = _format_flags(source, row, keys["experiment"], keys.get("flags", {}))
    if "model" in keys:
        model = keys["model"]
        flags.append(f"--models={model}")
        for name, x in keys.get("fields", {}).items():
            flags.append(f"--set={model}.{name}={str(x).lower()}")
    first = None if before is None else _read_command(source, row, before | {"data": data})
    return Command(keys["experiment"], flags, data, init_from=first)


def _format_flags(source: Source, row: str, experiment: str, flags: _Keys) -> list[str]:
    settings = importlib.import_module(f"experiments.{experiment}.settings").Settings
    valid = {field.name for field in dataclasses.fields(settings)}
    for name in flags:
        source.require(name, name, valid, f"a flag of `{experiment}`, here of {row!r},")
    return [_format_flag(name, x) for name, x in flags.items()]


def _format_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"


def _require_printed(source: Source, table: PublishedTable, keys: _Keys) -> None:
    printed = read(PUBLISHED / table.file, keys=table.keys).printed
    several = not isinstance(table.column, str) and not isinstance(table, RatioTable)
    for row, of_row in keys["rows"].items():
        name = row.rpartition(", ")[0] if several else row
        if of_row.get("published", True) and name not in printed:
            rule = f"a row is one of {table.file}, or says published = false"
            source.refuse(row, rule, repr(row), f"give {'; '.join(printed)}")
