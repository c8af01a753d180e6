"""Settings of `tables`, checked before anything is made."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, format_value
from experiments.tables.mapping import SCALES, all_tables
from experiments.tables.runs import Context

MULTI30K = ("train", "val", "test_2016_flickr")
LANGUAGES = ("de", "en")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of a published table, for which there is a way to a number of ours.

    Attributes:
      table: name of the table here.
      row: name of the row, that of the published table if it has the row.
    """

    table: str
    row: str

    def __str__(self) -> str:
        return f"{self.table}, {self.row}"


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `tables`."""

    once = True

    only: tuple[str, ...] = flag(
        (), "Names of tables, as the files of `mapping` have them. Without it: all of the scale."
    )
    scale: str | None = flag(
        None,
        f"Scale of ours: {', '.join(SCALES)}; cpu and gpu translate Multi30k, paper WMT14 with the "
        "papers' sizes. Needed, but with --claims.",
        choices=SCALES,
    )
    multi30k: str | None = flag(
        None,
        f"Folder of Multi30k's text, {' and '.join(f'train.{x}.gz' for x in LANGUAGES)} and so on: "
        f"{', '.join(MULTI30K)}.",
        is_path=True,
    )
    text: str | None = flag(
        None,
        "File of text that BERT is trained on: a sentence a line, blank lines between documents.",
        is_path=True,
    )
    data_dir: str | None = flag(
        None, "Folder of TFDS with wmt14_translate. Without it: ~/tensorflow_datasets."
    )
    seeds: tuple[int, ...] = flag((0, 1, 2), "Seeds of the trainings.", least=0, below=2**29)

    dry_run: bool = flag(
        False, "Whether to say which runs are missing, and for which rows; nothing is run."
    )
    claims: bool = flag(False, "Judge what papers are cited for by kept rows; nothing is run.")
    part: str | None = flag(
        None,
        "Part I/N of the cells, every N-th from the I-th on, counted from 0. Without it: in a job "
        "array of SLURM that of the job, else all.",
    )

    @classmethod
    def of_place(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a job of an array."""
        of_job = None if "part" in named else part_of_array(os.environ)
        return {} if of_job is None else {"part": of_job}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part is not None:
            parts = re.fullmatch(r"(\d+)/(\d+)", self.part)
            if parts is None or int(parts[1]) >= int(parts[2]):
                raise Invalid(f"--part={self.part}: give I/N, such as 0/8 to 7/8")
        if self.claims:
            return
        if self.scale is None:
            raise Invalid(f"--scale: each run has one; got none; give {format_value(SCALES)}")
        for name in self.only:
            if name not in all_tables():
                given, valid = format_value(self.only), ", ".join(all_tables())
                raise Invalid(f"--only={given}: no {name!r}; valid: {valid}")
            scales = all_tables()[name].scales
            if self.scale not in scales:
                raise Invalid(
                    f"--only={name}: has no --scale={self.scale}; give {format_value(scales)}"
                )
        needed = {
            "multi30k": f"FOLDER, with {', '.join(map(format_value, self._files('').values()))}",
            "text": "FILE, a sentence a line",
        }
        for name, what in needed.items():
            readers = self._readers(name)
            if readers and getattr(self, name) is None:
                are = "is" if len(readers) == 1 else "are"
                raise Invalid(
                    f"--scale={self.scale}: {format_value(readers)} {are} trained on text; give "
                    f"--{name}={what}, or other tables with --only"
                )
        if self.multi30k is not None:
            missing = [file for file in self._paths() if not Path(file).is_file()]
            if missing and Path(self.multi30k).exists():
                name = Path(missing[0]).name
                raise Invalid(
                    f"--multi30k={self.multi30k}: no {name} there; give the folder that has it"
                )

    def check_named(self, named: Collection[str]) -> None:
        """Refuses flags that would count for nothing."""
        super().check_named(named)
        others = [f"--{name}" for name in sorted({*named} - {"claims"})]
        if self.claims and others:
            raise Invalid(f"--claims: nothing is run; leave out {format_value(others)}")
        readers = {
            "seeds": [one for one in self.tables() if all_tables()[one].trains],
            "multi30k": self._readers("multi30k"),
            "text": self._readers("text"),
            "data_dir": self._readers("wmt14"),
        }
        for name, tables in readers.items():
            if name in named and not tables:
                raise Invalid(
                    f"--{name}={format_value(getattr(self, name))}: none of the tables needs it at "
                    f"--scale={self.scale}; leave it out"
                )

    def tables(self) -> list[str]:
        """The names of the tables of the run."""
        return [
            name for name in self.only or all_tables() if self.scale in all_tables()[name].scales
        ]

    def cells(self) -> list[Cell]:
        """The cells of the run."""
        cells = [Cell(name, row) for name in self.tables() for row in all_tables()[name].rows]
        index, _, count = (self.part or "0/1").partition("/")
        return cells[int(index) :: int(count)]

    def data(self) -> dict[str, list[str]]:
        """The flags that name the data of an experiment, by the name of the data."""
        files = self._files(self.multi30k or "multi30k")
        return {
            "multi30k": [f"--{flag}={','.join(paths)}" for flag, paths in files.items()],
            "text": [f"--input={self.text}"],
            "wmt14": [] if self.data_dir is None else [f"--data_dir={self.data_dir}"],
        }

    def context(self, folder: Path) -> Context:
        """What a run gives to its rows, with its trainings in a folder."""
        assert self.scale is not None  # it is checked, but with --claims
        return Context(self.scale, folder, self.seeds, self.data())

    def _readers(self, data: str) -> list[str]:
        """The tables whose models are trained on the data of that name."""
        scale = self.scale or ""  # without one there is no table
        return [name for name in self.tables() if all_tables()[name].data(scale) == data]

    def _files(self, folder: str) -> dict[str, tuple[str, ...]]:
        flags = ("data_files", "validation_files", "test_files")
        return {
            flag: tuple(str(Path(folder, f"{split}.{language}.gz")) for language in LANGUAGES)
            for flag, split in zip(flags, MULTI30K, strict=True)
        }

    def _paths(self) -> list[str]:
        return [path for paths in self._files(self.multi30k or "").values() for path in paths]


def part_of_array(variables: Mapping[str, str]) -> str | None:
    """The part I/N of a job of SLURM's array; None where there is no array.

    >>> keys = ("ID", "MIN", "MAX", "STEP", "COUNT")
    >>> part_of_array({f"SLURM_ARRAY_TASK_{k}": x for k, x in zip(keys, "62824")})
    '2/4'

    Raises:
      Invalid: the numbers of the array have gaps, or one of its variables is missing.
    """
    names = [f"SLURM_ARRAY_TASK_{x}" for x in ("ID", "MIN", "MAX", "STEP", "COUNT")]
    if names[0] not in variables:
        return None
    missing = [name for name in names if name not in variables]
    if missing:
        raise Invalid(f"the job array says no {missing[0]}; give --part=I/N")
    job = int(variables["SLURM_ARRAY_TASK_ID"])
    least = int(variables["SLURM_ARRAY_TASK_MIN"])
    most = int(variables["SLURM_ARRAY_TASK_MAX"])
    step = int(variables["SLURM_ARRAY_TASK_STEP"])
    count = int(variables["SLURM_ARRAY_TASK_COUNT"])
    if (most - least) // step + 1 != count:
        raise Invalid("the job array has gaps; give one without, such as 0-7, or --part=I/N")
    return f"{(job - least) // step}/{count}"
