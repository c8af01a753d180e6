"""The records of TFDS as dictionaries of strings."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Texts"]

IN_MEMORY = 2**16  # examples; parsing one takes longer than encoding it
CHUNK = 4096


class Texts:
    """Random access to some features of records, as str. A small data set is read at once.

    Args:
      records: a TFDS data source: dictionaries by index, values bytes, str or integers.
      features: names of the records' features, by the name that an example has for the text.
    """

    def __init__(self, records: Any, features: Mapping[str, str]) -> None:
        self._features = dict(features)
        self._length = len(records)
        self._records = records
        self._texts: list[dict[str, str]] | None = None
        if self._length <= IN_MEMORY:
            indices: Sequence[int] = range(self._length)
            self._texts = [
                self._text(record)
                for start in range(0, self._length, CHUNK)
                for record in records.__getitems__(list(indices[start : start + CHUNK]))
            ]
            self._records = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, str]:
        return self._texts[index] if self._texts is not None else self._text(self._records[index])

    def _text(self, record: Mapping[str, Any]) -> dict[str, str]:
        return {name: _as_str(record[feature]) for name, feature in self._features.items()}


def _as_str(value: Any) -> str:
    # real data is bytes, and integers where it is labels; tfds.testing.mock_data gives str
    return value.decode() if isinstance(value, bytes) else str(value)
