"""The folder of a run, and the settings in it that made it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from attnlab.runs.folders import fresh_folder

from attnlab.runs.errors import Invalid
from attnlab.training.checkpoint import difference

__all__ = ["SETTINGS", "command", "make_folder", "plain", "require_same", "saved_settings"]

SETTINGS = "settings.json"
S = TypeVar("S")  # a dataclass whose fields are flags


def make_folder(name: str, settings: Any, output_dir: Path) -> Path:
    """A fresh folder with the settings in it.

    Raises:
      Invalid: it cannot be made.
    """
    folder = fresh_folder(output_dir, name)
    fresh = folder / f"{SETTINGS}.tmp"  # so that a kill leaves all of it or nothing
    fresh.write_text(json.dumps(plain(settings), indent=2) + "\n")
    fresh.replace(folder / SETTINGS)
    return folder


def saved_settings(folder: str, kind: type[S]) -> S:
    """The settings that a folder was made with.

    Raises:
      Invalid: it is no folder of this job.
    """
    try:
        found = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
        return kind(**{name: _tuple_if_list(x) for name, x in dict(found).items()})
    except (OSError, ValueError, TypeError):
        raise Invalid(
            f"--resume={folder}: no {SETTINGS} of this job there; give a folder that it made"
        ) from None


def require_same(folder: str, settings: Any, *, free: Sequence[str] = ()) -> None:
    """Checks that a folder to go on in was made with these settings.

    Args:
      folder: that an earlier run made.
      settings: to go on with.
      free: fields that may be others now.

    Raises:
      Invalid: it was not; the message has the difference.
    """
    found: Any = saved_settings(folder, type(settings))
    found = dataclasses.replace(found, **{name: getattr(settings, name) for name in free})
    if found != settings:
        raise Invalid(
            f"--resume={folder} was made with other settings: "
            f"{difference(plain(found), plain(settings))}; leave these flags out"
        )


def command(name: str, settings: Any) -> str:
    """What to type for a run with these settings: the flags that are not at their defaults."""
    flags = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            flags.append(f"--{field.name}" if value else f"--no{field.name}")
        else:
            written = ",".join(map(str, value)) if isinstance(value, tuple) else value
            flags.append(f"--{field.name}={written}")
    return shlex.join(["launch/local", name, *flags])


def plain(settings: Any) -> dict[str, Any]:
    """A dataclass as JSON has it; functions by their names."""
    return json.loads(
        json.dumps(dataclasses.asdict(settings), default=lambda x: getattr(x, "__name__", repr(x)))
    )


def _tuple_if_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
