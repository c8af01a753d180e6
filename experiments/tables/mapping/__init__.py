"""Published tables and what of ours stands beside each: read from the TOML files of this folder.

A file is a paper. Of a table, `file` is in `experiments/published`, `column` is its column, or
columns by title, and `study` is one of `studies.toml` or a kind of count, `COUNTS`. `like` names a
table of the same file whose keys hold where this one has none. A row is what a table's keys are for
all its rows, and its own. A row that the paper does not have says `published = false`. `collapsed`
has the scores below which a row has not learned the task, and is not compared.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from attnlab.runs.errors import Invalid
from attnlab.runs.published import read
from experiments.tables.beside import Beside
from experiments.tables.exact import ExactTable
from experiments.tables.growth import Growth
from experiments.tables.lengths import LengthTable
from experiments.tables.logits import LogitVariance
from experiments.tables.measured import MeasuredTable, Quantity
from experiments.tables.parameters import Count
from experiments.tables.paths import PathLength
from experiments.tables.runs import Command
from experiments.tables.stacks import StackGrowth
from experiments.tables.trained import Trained, TrainedTable, Training, WordedTable
from experiments.tables.training_cost import TrainingCost

__all__ = ["PUBLISHED", "SCALES", "Source", "all_tables", "parsed", "tables_of"]

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER.parents[1] / "published"
SCALES = ("exact", "cpu", "gpu", "paper")
STUDIES = "studies.toml"
COUNTS: dict[str, Any] = {
    "parameters": Count,
    "growth": Growth,
    "path": PathLength,
    "stack": StackGrowth,
    "logits": LogitVariance,
    "cost": TrainingCost,
}
KINDS: dict[str, Any] = {
    "size": TrainedTable,
    "side": TrainedTable,
    "words": WordedTable,
    "courses": LengthTable,
}
_TABLE = {"title", "file", "column", "keys", "note", "study", "rows", "like"}
_RUN = {"model", "fields", "flags", "cell", "evaluated", "before", "data", *SCALES[1:]}
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

    def require(self, key: str, name: str, valid: Any, what: str) -> None:
        """Refuses a name that is none of the valid ones."""
        if name not in valid:
            self.refuse(
                key, f"{what} must be known", repr(name), f"give {', '.join(sorted(valid))}"
            )

    def _line(self, key: str) -> int:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        head = re.compile(rf"\[{re.escape(self.name)}[.\]]")
        first = next(i for i, line in enumerate(lines) if head.match(line))
        named = re.compile(rf'(^|[\s.{{"\[]){re.escape(key)}"?\s*[=.\]]')
        # A key that is inherited stands elsewhere: then the table's head is its line.
        return next((i for i in range(first, len(lines)) if named.search(lines[i])), first) + 1


def tables_of(path: Path, studies: _Keys) -> dict[str, Beside]:
    """The tables of a file.

    Args:
      path: path of the file.
      studies: content of `studies.toml`.

    Raises:
      Invalid: the file is not TOML, lacks a key, or has a study, a flag, a score, a key or a row
        that there is not.
    """
    file = parsed(path)
    return {name: _table(Source(path, name), keys, file, studies) for name, keys in file.items()}


@functools.cache
def all_tables() -> dict[str, Beside]:
    """The tables of all files, by name; read at the first call.

    Raises:
      Invalid: a file is not valid.
    """
    studies = parsed(FOLDER / STUDIES)
    paths = sorted(path for path in FOLDER.glob("*.toml") if path.name != STUDIES)
    return {name: table for path in paths for name, table in tables_of(path, studies).items()}


def parsed(path: Path) -> _Keys:
    """What a TOML file has.

    Raises:
      Invalid: the file is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path.name}: {error}") from None


def _table(source: Source, own: _Keys, file: _Keys, studies: _Keys) -> Beside:
    base: _Keys = {}
    if "like" in own:
        source.require("like", own["like"], file, "the table that it is like")
        base = file[own["like"]]
    study = str(own.get("study", base.get("study")))
    source.require("study", study, COUNTS | studies, "a study")
    if study in COUNTS:
        names = {field.name for field in dataclasses.fields(COUNTS[study])}
        table_keys, row_keys = _TABLE | names, names
    elif study == "compare_lengths":
        table_keys, row_keys = _MEASURED, _MEASURED_ROW
    else:
        table_keys, row_keys = _TRAINED, _TRAINED_ROW
    for key in own:
        source.require(key, key, table_keys, "a key of a table")
    keys = {key: x for key, x in (base | own).items() if key in table_keys}
    if missing := [key for key in ("title", "file", "column", "rows") if key not in keys]:
        rule = "a table has a title, a file, a column and rows"
        source.refuse(source.name, rule, f"no {missing[0]}", "add it")
    for row, of_row in keys["rows"].items():
        for key in of_row:
            if row in own.get("rows", {}) or key not in _TRAINED_ROW:
                source.require(row, key, row_keys, f"a key of the row {row!r}")
    shared = ("title", "file", "column", "keys", "note")
    common: _Keys = {key: keys[key] for key in shared if key in keys}
    if study in COUNTS:
        cells = {row: _count(COUNTS[study], keys | x) for row, x in keys["rows"].items()}
        table: Beside = ExactTable(**common, cells=cells)
    elif study == "compare_lengths":
        table = _measured(source, keys, common, studies[study])
    else:
        table = _trained(source, keys, common, studies[study])
    _require_printed(source, table, keys)
    return table


def _count(kind: Any, keys: _Keys) -> Any:
    given = {
        field.name: keys[field.name] for field in dataclasses.fields(kind) if field.name in keys
    }
    pairs = {name: tuple(x.items()) for name, x in given.items() if isinstance(x, dict)}
    return kind(**given | pairs)


def _measured(source: Source, keys: _Keys, common: _Keys, study: _Keys) -> MeasuredTable:
    (base,) = keys["base"].items()
    return MeasuredTable(
        **common,
        flags=_flags(source, "flags", study["experiment"], keys["flags"]),
        quantity=Quantity(**keys["quantity"]),
        base=base,
        lines={row: x["mechanism"] for row, x in keys["rows"].items()},
        lengths=keys["lengths"],
        not_comparable=_reasons(keys),
    )


def _trained(source: Source, keys: _Keys, common: _Keys, study: _Keys) -> Trained:
    scales = keys.get("scales", [scale for scale in SCALES if scale in study])
    trainings = {}
    for row, of_row in keys["rows"].items():
        runs = {scale: _command(source, row, _at(scale, study, keys, of_row)) for scale in scales}
        merged = _merged(keys, of_row)
        trainings[row] = Training(runs, merged.get("cell", {}), merged.get("evaluated"))
    compares = keys.get("compares", "size")
    source.require("compares", compares, KINDS, "what it compares")
    if compares == "courses":
        return LengthTable(**common, trainings=trainings, less=keys["less"])
    score = keys.get("score", "BLEU")
    source.require("score", score, study["scores"], "a score of the study")
    for name in keys.get("collapsed", {}):
        source.require("collapsed", name, study["scores"], "a score of the study")
    given = {name: keys[name] for name in ("base", "tie", "collapsed") if name in keys}
    return KINDS[compares](
        **common,
        trainings=trainings,
        measures=study["scores"],
        score=score,
        sizes=compares == "size",
        not_comparable=_reasons(keys),
        **given,
    )


def _reasons(keys: _Keys) -> dict[str, str]:
    rows = keys["rows"].items()
    return {row: x["not_comparable"] for row, x in rows if "not_comparable" in x}


def _at(scale: str, *levels: _Keys) -> dict[str, Any]:
    """What levels have for a scale, each over the ones before."""
    return _merged(*(part for level in levels for part in (level, level.get(scale, {}))))


def _merged(*levels: _Keys) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for level in levels:
        for key, x in level.items():
            merged[key] = _merged(merged.get(key, {}), x) if isinstance(x, dict) else x
    return merged


def _command(source: Source, row: str, keys: _Keys) -> Command:
    """The run of a row, and of what it begins with."""
    data, before = keys.get("data"), keys.get("before")
    flags = _flags(source, row, keys["experiment"], keys.get("flags", {}))
    if "model" in keys:
        model = keys["model"]
        fields = {name: str(x).lower() for name, x in keys.get("fields", {}).items()}
        flags += [f"--models={model}", *(f"--set={model}.{key}={x}" for key, x in fields.items())]
    first = None if before is None else _command(source, row, before | {"data": data})
    return Command(keys["experiment"], flags, data, init_from=first)


def _flags(source: Source, row: str, experiment: str, flags: _Keys) -> list[str]:
    settings = importlib.import_module(f"experiments.{experiment}.settings").Settings
    valid = {field.name for field in dataclasses.fields(settings)}
    for name in flags:
        source.require(name, name, valid, f"a flag of `{experiment}`, here of {row!r},")
    return [_flag(name, x) for name, x in flags.items()]


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"


def _require_printed(source: Source, table: Beside, keys: _Keys) -> None:
    printed = read(PUBLISHED / table.file, keys=table.keys).printed
    several = not isinstance(table.column, str) and not isinstance(table, MeasuredTable)
    for row, of_row in keys["rows"].items():
        name = row.rpartition(", ")[0] if several else row
        if of_row.get("published", True) and name not in printed:
            rule = f"a row is one of {table.file}, or says published = false"
            source.refuse(row, rule, repr(row), f"give {'; '.join(printed)}")
