"""What rows say of their data, and that a run's rows are of one."""

import dataclasses

import pytest

from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows


@dataclasses.dataclass(frozen=True)
class Row:
    name: str


def rows_of(folder, **environment):
    found = Rows(folder, lambda row: row.name, [Row])
    found.environment = environment
    return found


def test_rows_of_other_data_are_refused_and_older_ones_are_not(tmp_path):
    folder = Folder.fresh("spell", tmp_path, {})
    folder.begin()
    rows_of(folder).add(Row("of an older version"))
    now = {"name": "a.txt", "sha256": "1"}
    first = rows_of(folder, input=now)
    first.require_same_input()
    first.add(Row("b"))
    rows_of(folder, input=now | {"name": "moved.txt"}).require_same_input()
    with pytest.raises(Invalid, match=r"is about other data than a\.txt is now; start a new run"):
        rows_of(folder, input=now | {"sha256": "2"}).require_same_input()


def test_rows_of_another_file_of_the_users_own_are_refused(tmp_path):
    folder = Folder.fresh("spell", tmp_path, {})
    folder.begin()
    rows_of(folder).add(Row("of an older version"))
    first = rows_of(folder)
    first.require_same_own({"mine.py:A": "1"})
    first.add(Row("b"))
    rows_of(folder).require_same_own({"mine.py:A": "1", "mine.py:B": "2"})
    with pytest.raises(Invalid, match=r"has rows of mine\.py:A as its file was before it was cha"):
        rows_of(folder).require_same_own({"mine.py:A": "3"})
