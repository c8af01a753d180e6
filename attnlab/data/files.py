"""Plain text files as TFDS data sets: checked and prepared once, then read by index.

A prepared data set is in a folder that is named by the content of its files, so that a changed file
is another data set and nothing is overwritten. It is written under another name and renamed when
it is whole, so that an interrupted preparation is redone.
"""

import contextlib
import functools
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from absl import logging

from attnlab.data.cache import default_cache_dir, writable
from attnlab.data.lines import Row, read_pairs, read_tsv
from attnlab.data.texts import Texts
from attnlab.runs.errors import Invalid, of_system

__all__ = ["content_digest", "open_text"]

PAIR = ("source", "target")


def open_text(
    *paths: str | Path, split: str = "train", cache_dir: str | Path | None = None
) -> Texts:
    """Examples {"source", "target"} of UTF-8 texts, in their order; they may be gzipped.

    Args:
      *paths: path of a text and that of its translation, a sentence a line, or the path of one file
        with both in each line, separated by a tab.
      split: part of the data set, in the words of TFDS: "train" is all, "train[:1%]" a part.
      cache_dir: folder of prepared data; None is `cache.default_cache_dir()`.

    Raises:
      Invalid: a file that is missing, misaligned or not UTF-8; an empty line; a cache that
        cannot be written. The message is one line.
    """
    files = tuple(map(Path, paths))
    kind, read = ("tsv", read_tsv) if len(files) == 1 else ("pairs", read_pairs)
    return prepare_files(kind, files, functools.partial(read, *files), split, cache_dir)


class LocalInfo(tfds.core.DatasetInfo):
    """What is known of a data set that nobody has published.

    TFDS looks for numbers of a new data set in its bucket, and leaves an empty temporary folder.
    """

    def initialize_from_bucket(self) -> None:
        """Finds nothing."""


class TextFiles(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """The TFDS builder of rows that a function reads.

    Args:
      name: name of the data set.
      read: function () -> an iterator of the rows.
      data_dir: parent of the folder of the data set, which need not exist yet.
    """

    VERSION = tfds.core.Version("1.0.0")
    # Nothing is downloaded. TFDS would look for a list of URLs beside this file, and for that
    # import importlib_resources, which it does not install.
    url_infos = None

    def __init__(self, name: str, read: Callable[[], Iterator[Row]], data_dir: Path) -> None:
        self.name, self._read = name, read
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> Any:
        features = {column: tfds.features.Text() for column in PAIR}
        return LocalInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, Row]]:
        yield from enumerate(self._read())


def prepare_files(
    kind: str,
    paths: tuple[Path, ...],
    read: Callable[[], Iterator[Row]],
    split: str,
    cache_dir: str | Path | None,
) -> Texts:
    """Returns the rows that `read` gives of these files, prepared if they are not yet."""
    folder = Path(cache_dir or default_cache_dir())
    name = f"{kind}_{content_digest(paths)[:32]}"
    builder = TextFiles(name, read, folder)
    if not builder.data_path.exists():
        if not sum(1 for _ in read()):  # reads all, so that what is wrong is said first
            raise Invalid(f"there is no text in {' and '.join(map(str, paths))}")
        writable(folder)
        prepare(builder)
        builder = TextFiles(name, read, folder)
    return Texts(builder.as_data_source(split), {column: column for column in PAIR})


def prepare(builder: TextFiles) -> None:
    """Writes the data set, unless another process has done so meanwhile."""
    logging.info("preparing %s in %s", builder.name, builder.data_dir)
    tfds.disable_progress_bar()  # it draws several, with the names of temporary files
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),  # "Downloading …", which it does not
            tempfile.TemporaryDirectory() as downloads,
        ):
            builder.download_and_prepare(download_dir=downloads, download_config=config)
    except OSError:
        if not builder.data_path.exists():
            raise


def content_digest(paths: tuple[Path, ...]) -> str:
    """One hash of what is in the files, in this order."""
    total = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise Invalid(f"{of_system(error)}; give a text file") from error
    return total.hexdigest()
