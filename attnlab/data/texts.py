"""The records of TFDS as dictionaries of strings."""

from collections.abc import Mapping
from typing import Any

from attnlab.runs.errors import Invalid

__all__ = ["Texts"]

IN_MEMORY = 2**16  # examples; parsing one takes longer than encoding it
CHUNK = 4096


class Texts:
    """Random access to some features of records, as str. A small data set is read at once.

    Args:
      records: a TFDS data source: dictionaries by index, values bytes, str or integers.
      features: names of the records' features, by the name that an example has for the text.

    Raises:
      Invalid: a text that is not UTF-8, in one line, when it is read.
    """

    def __init__(self, records: Any, features: Mapping[str, str]) -> None:
        self._features = dict(features)
        self._length = len(records)
        self._records = records
        self._texts: list[dict[str, str]] | None = None
        if self._length <= IN_MEMORY:
            read: list[Mapping[str, Any]] = []
            for start in range(0, self._length, CHUNK):
                read += records.__getitems__([*range(self._length)[start : start + CHUNK]])
            self._texts = [self._text(i, record) for i, record in enumerate(read)]
            self._records = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, str]:
        if self._texts is not None:
            return self._texts[index]
        return self._text(index, self._records[index])

    def _text(self, index: int, record: Mapping[str, Any]) -> dict[str, str]:
        try:
            return {name: _as_str(record[feature]) for name, feature in self._features.items()}
        except UnicodeDecodeError as error:
            raise Invalid(
                f"example {index}: not UTF-8, byte {error.object[error.start]:#04x} at place "
                f"{error.start + 1}; prepare the data set again with its encoding"
            ) from error


def _as_str(value: Any) -> str:
    # real data is bytes, and integers where it is labels; tfds.testing.mock_data gives str
    return value.decode() if isinstance(value, bytes) else str(value)
