"""The rows of a run: what was measured, and beside it when, where and with which settings."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from attnlab.runs import processes
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import build
from attnlab.runs.folder import ROWS, Folder, no_row

__all__ = ["Kept", "Rows", "Where", "now"]

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class Where:
    """Where a row comes from.

    Attributes:
      environment: device, versions, git revision; from `provenance.describe` and what an experiment
        adds.
      flags: settings of the run.
      time: time at which the row was written, UTC.
      begun: time at which the run that wrote the row began; a resumed run has rows of several.
    """

    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)
    time: str = ""
    begun: str = ""


@dataclasses.dataclass(frozen=True)
class Kept(Generic[Row]):
    """A row and where it comes from."""

    row: Row
    where: Where


class Rows(Generic[Key, Row]):
    """The rows of a folder: on disk a line of JSON each, here the last one of each key.

    Attributes:
      kept: the rows by key, in the order in which the keys first came.
      environment: device, versions and git revision of the rows to come; of what is made of data,
        "input" has its name and sha256; of attention of a user's own "own" has the sha256 of its
        file by its name.
      lost: reasons why items were given up since this process began, by the keys of their rows.
    """

    def __init__(
        self,
        folder: Folder,
        key: Callable[[Row], Key],
        kinds: Sequence[type],
        *,
        derived: Sequence[str] = (),
    ) -> None:
        """Reads the rows that the folder has.

        Args:
          folder: folder of the run.
          key: (row) -> its key; of two rows with the same key the later one counts.
          kinds: dataclasses of the rows; a line is of the one whose fields it has.
          derived: names of properties written beside the fields, for readers without this library.

        Raises:
          Invalid: a line is no row; the message has its number.
        """
        self.environment: dict[str, Any] = {}
        self.kept: dict[Key, Kept[Row]] = {}
        self.lost: dict[Key, str] = {}
        self._folder, self._key, self._derived = folder, key, tuple(derived)
        self._begun = now()
        for number, values in folder.rows().items():
            try:
                entry = _read(values, kinds)
                self.kept[key(entry.row)] = entry
            except (TypeError, ValueError, KeyError, AttributeError):
                raise no_row(folder.path / ROWS, number, folder.name) from None

    @property
    def experiment(self) -> str:
        """The name of the experiment whose rows these are."""
        return self._folder.name

    def of(self, keys: Iterable[Key]) -> list[Kept[Row]]:
        """The rows of some keys, in their order, as far as they are there."""
        return [self.kept[key] for key in keys if key in self.kept]

    def require_same_input(self) -> None:
        """Refuses to add rows of other data than those that are there.

        Rows of older versions, which do not say what they are of, count as of the same.

        Raises:
          Invalid: a row is of other data.
        """
        asked = self.environment["input"]
        for entry in self.kept.values():
            kept = entry.where.environment.get("input", asked)
            if kept["sha256"] != asked["sha256"]:
                raise Invalid(
                    f"{self._folder.given} is about other data than {asked['name']} is "
                    "now; start a new run"
                )

    def require_same_own(self, sources: Mapping[str, str]) -> None:
        """Gives rows to come the digests of a user's own files; refuses others than before.

        Args:
          sources: sha256 of the file of each own attention, by its name.

        Raises:
          Invalid: a row is of another file.
        """
        if sources:
            self.environment |= {"own": dict(sources)}
        for entry in self.kept.values():
            for name, kept in entry.where.environment.get("own", {}).items():
                if sources.get(name, kept) != kept:
                    raise Invalid(
                        f"{self._folder.given} has rows of {name} as its file was before "
                        "it was changed; start a new run"
                    )

    def add(self, row: Row) -> None:
        """Adds a row, on disk before it returns; of several processes the first writes it."""
        where = Where(self.environment, self._folder.settings, now(), self._begun)
        derived = {name: getattr(row, name) for name in self._derived if hasattr(row, name)}
        fields = dataclasses.asdict(cast(Any, row))
        if processes.is_first():
            self._folder.append(fields | derived | dataclasses.asdict(where))
        self.kept[self._key(row)] = Kept(row, where)


def now() -> str:
    """The time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _read(values: Mapping[str, Any], kinds: Sequence[type]) -> Kept[Any]:
    def required_fields(kind: Any) -> set[str]:
        missing = dataclasses.MISSING
        return {
            field.name
            for field in dataclasses.fields(kind)
            if field.default is missing and field.default_factory is missing
        }

    fitting = [kind for kind in kinds if required_fields(kind) <= values.keys()]
    kind = fitting[0] if fitting else kinds[0]
    return Kept(build(kind, values), build(Where, values))
