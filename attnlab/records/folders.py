"""The folder of a run."""

import datetime
from pathlib import Path

from attnlab.records.errors import Invalid

__all__ = ["fresh_folder"]


def fresh_folder(parent: Path, name: str) -> Path:
    """Makes `parent`/NAME-DATE-TIME, never one that exists.

    Raises:
      Invalid: it cannot be made.
    """
    stamp = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    for i in range(1, 1000):
        path = parent / (stamp if i == 1 else f"{stamp}-{i}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise Invalid(f"--output_dir={parent} is a file; give a folder") from None
        except OSError as error:
            raise Invalid(f"--output_dir={parent}: {error.strerror}; give a folder") from None
        else:
            return path
    raise Invalid(f"--output_dir={parent}: no free name for {stamp}")
