"""Data sets that TFDS has prepared, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from attnlab.data.texts import Texts
from attnlab.data.tfrecord import Shard, TFRecords
from attnlab.runs.errors import Invalid

__all__ = ["open_tfds"]

INFO = "dataset_info.json"  # what makes a folder a data set


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
    known = [key for key, kind in builder.info.features.items() if is_text(kind)]
    features = features or usual_features(builder.info.supervised_keys, known)
    labels = [key for key, kind in builder.info.features.items() if is_label(kind)]
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


def is_text(feature: Any) -> bool:
    return isinstance(feature, tfds.features.Text)


def is_label(feature: Any) -> bool:
    return isinstance(feature, tfds.features.ClassLabel)


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
