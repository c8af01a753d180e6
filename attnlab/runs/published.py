"""Published tables: line 1 `# source: …`, line 2 the header with units, then a row a system.

A blank cell is a figure that is not there; a cell of words is no figure.
"""

import csv
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from attnlab.runs.errors import Invalid


@dataclasses.dataclass(frozen=True)
class Table:
    """One published table.

    Attributes:
      name: name of the file.
      source: origin of the figures, from the first line.
      printed: words and figures of the paper, by row and column; blank cells are left out.
    """

    name: str
    source: str
    printed: Mapping[str, Mapping[str, str]]

    @property
    def status(self) -> str:
        """How the figures were checked, as the first line says it; "" where it does not."""
        _, _, status = self.source.partition("; status: ")
        return status.split(";")[0]

    @property
    def cells(self) -> Mapping[str, Mapping[str, float]]:
        """The figures by row and column."""
        return {
            row: {column: float(x) for column, x in printed.items() if _is_figure(x)}
            for row, printed in self.printed.items()
        }

    def ratio(self, above: str, below: str, column: str) -> float | None:
        """One row's figure over another's, or None where either is blank."""
        top = self.cells[above].get(column)
        bottom = self.cells[below].get(column)
        return None if top is None or bottom is None else top / bottom


def read(path: Path, *, keys: int = 1) -> Table:
    """Reads one table.

    Args:
      path: path of the file.
      keys: number of the first columns that name a row together, such as "global, dot".

    Raises:
      Invalid: its first line does not say where it comes from.
    """
    first, header, *body = path.read_text(encoding="utf-8").splitlines()
    mark = "# source: "
    if not first.startswith(mark):
        raise Invalid(f"{path}: line 1 must begin with {mark!r}; got {first[:40]!r}")
    columns = next(csv.reader([header]))
    printed = {}
    for row in csv.reader(body):
        name = ", ".join(row[:keys])
        printed[name] = {c: x for c, x in zip(columns[keys:], row[keys:], strict=True) if x}
    return Table(path.name, first.removeprefix(mark), printed)


def _is_figure(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
