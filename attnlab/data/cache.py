"""Where prepared data and trained tokenizers are kept between runs."""

import os
import tempfile
from pathlib import Path

from attnlab.runs.errors import Invalid


def default_cache_dir() -> Path:
    """Returns `$XDG_CACHE_HOME/attnlab`, `~/.cache/attnlab`, or without a home one in /tmp."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base == "~/.cache":  # there is no home, as of a container's user
        base = f"{tempfile.gettempdir()}/{os.getuid()}"
    return Path(base) / "attnlab"


def writable(folder: Path) -> Path:
    """Makes a folder and sees that files can be written to it.

    Raises:
      Invalid: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(
            f"cannot write to the cache folder {folder} ({error.strerror}); name another cache_dir"
        ) from error
    return folder


def add_file(path: Path, content: bytes) -> None:
    """Writes a file that is either whole or not there, however the process or the power ends."""
    with tempfile.TemporaryDirectory(dir=writable(path.parent)) as folder:
        made = Path(folder, path.name)
        with made.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
