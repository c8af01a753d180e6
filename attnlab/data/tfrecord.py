"""Random access to TFRecord files without TensorFlow.

A record is its length (8 bytes, little-endian), a checksum of that (4), the payload, and a checksum
of the payload (4). The lengths are read once, in less than a microsecond each; the checksums are
not looked at.
"""

import array
import dataclasses
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnlab.runs.errors import Invalid

__all__ = ["Shard", "TFRecords"]

HEADER, FOOTER = 12, 4
LENGTH = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class Shard:
    """Some records of a file.

    Attributes:
      path: path of the file.
      skip: number of records of the file that come before these.
      take: number of these records; -1 is all that are left.
    """

    path: Path
    skip: int = 0
    take: int = -1


class TFRecords:
    """The payloads of the records of several files, one after the other, by index.

    Raises:
      Invalid: a file that is missing, cut off, or has fewer records than are to be taken.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._paths = [shard.path for shard in shards]
        self._spans = [record_spans(shard) for shard in shards]
        self._ends = np.cumsum([len(spans) for spans in self._spans])
        self._maps: dict[int, mmap.mmap] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_maps": {}}  # workers map the files anew

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        shard = int(np.searchsorted(self._ends, index, side="right"))
        start, stop = self._spans[shard][index - int(self._ends[shard])]
        if shard not in self._maps:
            self._maps[shard] = mapped(self._paths[shard])
        return self._maps[shard][start:stop]


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def record_spans(shard: Shard) -> np.ndarray:
    """Where the payloads of the records begin and end, [n, 2] int64."""
    if not shard.path.is_file():
        raise Invalid(f"no file {shard.path}; the data set is not whole, prepare it again")
    size = shard.path.stat().st_size
    borders, position = array.array("q"), 0
    if size:
        with mapped(shard.path) as file:
            while position < size:
                payload = position + HEADER
                length = LENGTH.unpack_from(file, position)[0] if payload <= size else size
                position = payload + length + FOOTER
                if position > size:
                    raise Invalid(
                        f"{shard.path} ends within record {len(borders) // 2}; prepare the data "
                        "set again"
                    )
                borders.extend((payload, payload + length))
    spans = np.array(borders, np.int64).reshape(-1, 2)
    stop = None if shard.take < 0 else shard.skip + shard.take
    if stop is not None and stop > len(spans):
        raise Invalid(
            f"{shard.path} has {len(spans)} records, not {stop}; prepare the data set again"
        )
    return spans[shard.skip : stop]
