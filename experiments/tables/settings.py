"""What a user asks of `tables`, checked before anything is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, written
from experiments.tables.mapping import SCALES, TABLES

__all__ = ["Cell", "Settings"]

MULTI30K = ("train", "val", "test_2016_flickr")
LANGUAGES = ("de", "en")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of a published table, for which there is a way to a number of ours.

    Attributes:
      table: name of the table here.
      row: name of the row in the published table.
    """

    table: str
    row: str

    def __str__(self) -> str:
        return f"{self.table}, {self.row}"


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `tables`."""

    only: tuple[str, ...] = flag(
        (), f"Names of tables: {', '.join(TABLES)}. Without it: all of the scale.", choices=TABLES
    )
    scale: str = flag(
        "exact",
        f"Scale of ours: {', '.join(SCALES)}; exact is counted, without training, cpu and gpu are "
        "trained, translation on Multi30k.",
        choices=SCALES,
    )
    multi30k: str | None = flag(
        None,
        f"Folder of Multi30k's text, {' and '.join(f'train.{x}.gz' for x in LANGUAGES)} and so on: "
        f"{', '.join(MULTI30K)}.",
        is_path=True,
    )
    seeds: tuple[int, ...] = flag((0, 1, 2), "Seeds of the trainings.", least=0, below=2**29)

    def __post_init__(self) -> None:
        """Checks each value, and whether they go together.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        super().__post_init__()
        for name in ("only", "seeds"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise Invalid(f"--{name}={written(given)}: give each once")
        for name in self.only:
            scales = TABLES[name].scales
            if self.scale not in scales:
                raise Invalid(f"--only={name}: has no --scale={self.scale}; give {written(scales)}")
        if self.multi30k is None and any(TABLES[name].of_text for name in self.tables()):
            raise Invalid(
                f"--scale={self.scale}: is trained on text; give --multi30k=FOLDER, with "
                f"{', '.join(map(written, self._files('').values()))}"
            )
        if self.multi30k is not None:
            missing = [file for file in self._paths() if not Path(file).is_file()]
            if missing:
                raise Invalid(f"--multi30k={self.multi30k}: no {Path(missing[0]).name} there")

    def check_named(self, named: Collection[str]) -> None:
        """Refuses flags that would count for nothing."""
        super().check_named(named)
        for name, uses in (("seeds", "trains"), ("multi30k", "of_text")):
            if name in named and not any(getattr(TABLES[one], uses) for one in self.tables()):
                raise Invalid(
                    f"--{name}={written(getattr(self, name))}: none of the tables needs it at "
                    f"--scale={self.scale}; leave it out"
                )

    def tables(self) -> list[str]:
        """The names of the tables of the run."""
        return [name for name in self.only or TABLES if self.scale in TABLES[name].scales]

    def cells(self) -> list[Cell]:
        """The cells of the run."""
        return [Cell(name, row) for name in self.tables() for row in TABLES[name].rows]

    def data(self) -> tuple[str, ...]:
        """The flags of `translate` that name the text."""
        if self.multi30k is None:
            return ()
        files = self._files(self.multi30k)
        return tuple(f"--{flag}={','.join(paths)}" for flag, paths in files.items())

    def _files(self, folder: str) -> dict[str, tuple[str, ...]]:
        flags = ("data_files", "validation_files", "test_files")
        return {
            flag: tuple(str(Path(folder, f"{split}.{language}.gz")) for language in LANGUAGES)
            for flag, split in zip(flags, MULTI30K, strict=True)
        }

    def _paths(self) -> list[str]:
        return [path for paths in self._files(self.multi30k or "").values() for path in paths]
