"""Data sets that TFDS has prepared, read without TensorFlow.

A record of a TFRecord file is its length (8 bytes, little-endian), a checksum of that (4), the
payload, and a checksum of the payload (4). The lengths are read once, in less than a microsecond
each; the checksums are not looked at.
"""

from __future__ import annotations

import array
import dataclasses
import mmap
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from attnlab.data.texts import Texts
from attnlab.runs.errors import Invalid

__all__ = ["open_tfds"]

INFO = "dataset_info.json"  # what makes a folder a data set
HEADER, FOOTER = 12, 4  # bytes around the payload of a record
LENGTH = struct.Struct("<Q")


def open_tfds(
    name: str, *, split: str, data_dir: str | Path, features: Mapping[str, str] | None = None
) -> Texts:
    """Examples of a data set in a TFDS folder, in array_record or tfrecord files.

    Args:
      name: name of the data set in TFDS, such as "wmt14_translate/de-en" or "lm1b:1.1.0"; without a
        version, the newest that is there.
      split: part of the data set, in the words of TFDS: "train", "test[:100]", …
      data_dir: the folder that TFDS was given as its data_dir.
      features: names of the data set's features, by the name that an example has for the text, such
        as {"source": "en", "target": "de"} for the other direction. None is the pair that the data
        set is made for, in its own direction, or else its "text". A class is its number.

    Raises:
      Invalid: it is not there, or in a format that cannot be read. The message is one line.
    """
    builder = tfds.builder_from_directory(prepared_folder(name, Path(data_dir)))
    there = builder.info.features.items()
    known = [key for key, kind in there if isinstance(kind, tfds.features.Text)]
    features = features or usual_features(builder.info.supervised_keys, known)
    labels = [key for key, kind in there if isinstance(kind, tfds.features.ClassLabel)]
    if not features or not set(features.values()) <= {*known, *labels}:
        raise Invalid(
            f"{name} has the texts {', '.join(known) or '(none)'}, not "
            f"{', '.join(features.values()) or 'a pair or text'}; name its features"
        )
    return Texts(records(builder, name, split), features)


def usual_features(supervised: Any, known: list[str]) -> dict[str, str]:
    """Which features to take where none are named; empty where that cannot be known."""
    if supervised and len(supervised) == 2 and set(supervised) <= set(known):
        return dict(zip(("source", "target"), supervised, strict=True))
    if {"source", "target"} <= set(known):
        return {"source": "source", "target": "target"}
    return {"text": "text"} if "text" in known else {}


def records(builder: Any, name: str, split: str) -> Any:
    """The records of a split: dictionaries of bytes, by index."""
    try:
        info = builder.info.splits[split]
    except (KeyError, ValueError) as error:
        there = ", ".join(sorted(builder.info.splits)) or "none"
        raise Invalid(f"{name} has no split {split!r}; it has {there}") from error
    match builder.info.file_format:
        case tfds.core.FileFormat.ARRAY_RECORD:
            return builder.as_data_source(split)
        case tfds.core.FileFormat.TFRECORD:
            shards = [
                Shard(Path(part.filename), part.skip, part.take) for part in info.file_instructions
            ]
            return Examples(TFRecords(shards), builder.info.features)
        case tfds.core.FileFormat.PARQUET:
            reason = "TFDS loses examples when it writes parquet (500 of 2000 were kept)"
        case _:
            reason = "it is not read by index"
    raise Invalid(
        f"{name} is in {builder.info.file_format.value} files: {reason}; prepare it again in "
        f"another folder with --file_format=array_record"
    )


class Examples:
    """Records parsed by the features of a data set."""

    def __init__(self, payloads: TFRecords, features: Any) -> None:
        self.payloads, self.features = payloads, features

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.features.deserialize_example_np(self.payloads[index])

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


def prepared_folder(name: str, data_dir: Path) -> Path:
    """Returns the folder of the data set's newest version, or of the one that is named."""
    plain, _, version = name.partition(":")
    folder = data_dir / plain
    folders = {info.parent.name: info.parent for info in folder.glob(f"*/{INFO}")}
    versions = [known for known in folders if tfds.core.Version.is_valid(known)]
    if version in versions or (versions and not version):
        return folders[version or max(versions, key=tfds.core.Version)]
    there = sorted(
        str(info.parent.relative_to(data_dir))
        for info in data_dir.glob(f"{plain.split('/')[0]}/**/{INFO}")
    )
    raise Invalid(
        f"no {name} in {data_dir} (there is {', '.join(there) or 'nothing of that name'}); prepare "
        "it once where TensorFlow installs: pip install 'attnlab[prepare]' && "
        f"tfds build {name} --data_dir={data_dir} --file_format=array_record"
    )


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
            self._maps[shard] = map_file(self._paths[shard])
        return self._maps[shard][start:stop]


def map_file(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def record_spans(shard: Shard) -> np.ndarray:
    """Where the payloads of the records begin and end, [n, 2] int64."""
    if not shard.path.is_file():
        raise Invalid(f"no file {shard.path}; the data set is not whole, prepare it again")
    size = shard.path.stat().st_size
    borders, position = array.array("q"), 0
    if size:
        with map_file(shard.path) as file:
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
