"""What a user asks of `tables`, checked before anything is made."""

from __future__ import annotations

import dataclasses

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, written
from experiments.tables.mapping import SCALES, TABLES, Cell

__all__ = ["Settings"]


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `tables`."""

    only: tuple[str, ...] = flag(
        (), f"Names of tables: {', '.join(TABLES)}. Without it: all of the scale.", choices=TABLES
    )
    scale: str = flag(
        "exact",
        f"Scale of ours: {', '.join(SCALES)}; exact is counted, without training.",
        choices=SCALES,
    )

    def __post_init__(self) -> None:
        """Checks each value.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        super().__post_init__()
        if len(set(self.only)) < len(self.only):
            raise Invalid(f"--only={written(self.only)}: give each once")

    def tables(self) -> list[str]:
        """The names of the tables of the run."""
        named = self.only or TABLES
        return [name for name in named if TABLES[name].scale == self.scale]

    def cells(self) -> list[Cell]:
        """The cells of the run."""
        return [Cell(name, row) for name in self.tables() for row in TABLES[name].rows]
