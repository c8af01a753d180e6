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
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from attnlab.runs.errors import Invalid
from attnlab.runs.published import read
from experiments.tables.lengths import LengthTable
from experiments.tables.measured import Quantity, RatioTable
from experiments.tables.runs import Command
from experiments.tables.table import PublishedTable
from experiments.tables.trained import ScoreTable, Training

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER.parents[1] / "published"
SCALES = ("cpu", "gpu", "paper")
STUDIES = "studies.toml"
# Keys of a table and its rows that say which run is theirs, or how a row counts.
_RUN = {"model", "fields", "flags", "cell", "evaluated", "before", "data", *SCALES}
_ROW = {"mechanism", "not_comparable", "published"}
_Keys = dict[str, Any]


def read_tables(path: Path, studies: _Keys) -> dict[str, PublishedTable]:
    """The tables of a file.

    Args:
      path: path of the file.
      studies: content of `studies.toml`.

    Raises:
      Invalid: a table has a key or a row that there is not, which would count for nothing.
    """
    file = parse_toml(path)
    tables: dict[str, PublishedTable] = {}
    for name, own in file.items():
        keys = file[own["like"]] | own if "like" in own else own
        study = studies[keys["study"]]
        _require_known(name, keys, study)
        read = _read_measured if keys["study"] == "compare_lengths" else _read_trained
        tables[name] = read(keys, study)
        _require_printed(name, tables[name], keys)
    return tables


@functools.cache
def all_tables() -> dict[str, PublishedTable]:
    """The tables of all files, by name; read at the first call."""
    studies = parse_toml(FOLDER / STUDIES)
    paths = sorted(path for path in FOLDER.glob("*.toml") if path.name != STUDIES)
    return {name: table for path in paths for name, table in read_tables(path, studies).items()}


def parse_toml(path: Path) -> _Keys:
    """The content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _require_known(name: str, keys: _Keys, study: _Keys) -> None:
    """Refuses keys of a table or its rows, and scores, that nothing reads."""
    fields = {
        field.name
        for kind in (LengthTable, RatioTable, ScoreTable)
        for field in dataclasses.fields(kind)
    }
    unknown = keys.keys() - fields - _RUN - {"study", "like", "rows", "scales", "compares"}
    unknown |= keys.get("collapsed", {}).keys() - study.get("scores", {}).keys()
    for of_row in keys["rows"].values():
        unknown |= of_row.keys() - _RUN - _ROW
    if unknown:
        raise Invalid(f"table {name}: no such key, {', '.join(sorted(unknown))}; leave it out")


def _read_measured(keys: _Keys, study: _Keys) -> RatioTable:
    (base,) = keys["base"].items()
    return RatioTable(
        **_select_fields(RatioTable, keys)
        | {
            "run": Command(study["experiment"], _format_flags(keys["flags"]), trains=False),
            "quantity": Quantity(**keys["quantity"]),
            "base": base,
            "lines": {row: x["mechanism"] for row, x in keys["rows"].items()},
            "not_comparable": _read_reasons(keys),
        }
    )


def _read_trained(keys: _Keys, study: _Keys) -> LengthTable | ScoreTable:
    scales = keys.get("scales", [scale for scale in SCALES if scale in study])
    trainings = {}
    for row, of_row in keys["rows"].items():
        levels = (study, keys, of_row)
        runs = {scale: _read_command(_merge_at(scale, levels)) for scale in scales}
        merged = _merge((keys, of_row))
        trainings[row] = Training(runs, merged.get("cell", {}), merged.get("evaluated"))
    compares = keys.get("compares", "size")
    if compares == "courses":
        return LengthTable(**_select_fields(LengthTable, keys) | {"trainings": trainings})
    return ScoreTable(
        **_select_fields(ScoreTable, keys)
        | {
            "trainings": trainings,
            "measures": study["scores"],
            "sizes": {"size": True, "side": False}[compares],
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


def _read_command(keys: _Keys) -> Command:
    """The run of a row, and of what it begins with."""
    data, before = keys.get("data"), keys.get("before")
    flags = _format_flags(keys.get("flags", {}))
    if "model" in keys:
        model = keys["model"]
        flags.append(f"--models={model}")
        for name, x in keys.get("fields", {}).items():
            flags.append(f"--set={model}.{name}={str(x).lower()}")
    first = None if before is None else _read_command(before | {"data": data})
    return Command(keys["experiment"], flags, data, init_from=first)


def _format_flags(flags: _Keys) -> list[str]:
    return [_format_flag(name, x) for name, x in flags.items()]


def _format_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"


def _require_printed(name: str, table: PublishedTable, keys: _Keys) -> None:
    """Refuses rows that the paper does not have."""
    printed = read(PUBLISHED / table.file, keys=table.keys).printed
    several = not isinstance(table.column, str) and not isinstance(table, RatioTable)
    for row, of_row in keys["rows"].items():
        in_paper = row.rpartition(", ")[0] if several else row
        if of_row.get("published", True) and in_paper not in printed:
            raise Invalid(
                f"table {name}: a row is one of {table.file}, or says published = false; got "
                f"{row!r}; give {'; '.join(printed)}"
            )
