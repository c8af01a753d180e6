"""What a launcher is asked to run: NAME FLAGS…, the same words after the options of every place."""

import dataclasses
import datetime
import fcntl
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from names import experiments, listing
from steps import Refused

BUCKET = "gs://"
RECORD = "launch.jsonl"  # in the folder of a run: for each launch, command and revision


@dataclasses.dataclass(frozen=True)
class Request:
    """An experiment, its flags, and the folder of its run.

    Attributes:
      name: name of the experiment.
      flags: flags for it, without those that say where results go.
      parent: folder of the folder of the run, on this machine or gs://BUCKET/FOLDER.
      run: name of the folder of the run.
      resumed: whether that folder is an earlier run's.
    """

    name: str
    flags: tuple[str, ...]
    parent: str
    run: str
    resumed: bool

    @property
    def folder(self) -> str:
        """The folder of the run."""
        return f"{self.parent}/{self.run}"

    @property
    def label(self) -> str:
        """The name of the run where names are those of DNS, as in Kubernetes."""
        name = re.sub(r"[^a-z0-9]+", "-", self.run.lower()).strip("-")
        return (name if name[:1].isalpha() else f"run-{name}")[:40].strip("-")

    @property
    def on_bucket(self) -> bool:
        """Whether the results go to a bucket."""
        return self.parent.startswith(BUCKET)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.parent.removeprefix(BUCKET).partition("/")[0]

    @property
    def path_in_bucket(self) -> str:
        """The path of the folder of the run in its bucket."""
        return self.folder.removeprefix(f"{BUCKET}{self.bucket}/")

    def words(self, folder: str) -> list[str]:
        """The words after launch/local, where the folder of the run is `folder`.

        --run_dir begins the run there or goes on with it: a scheduler starts the same words again.
        """
        return [self.name, *self.flags, f"--run_dir={folder}"]


def read(words: Sequence[str]) -> Request:
    """The request of the words from NAME on.

    Raises:
      Refused: there is no such experiment, or the folder cannot be that of a run.
    """
    if not words:
        raise Refused("no NAME was given; --help lists them")
    name, flags = words[0], list(words[1:])
    known = experiments()
    if name not in known:
        raise Refused(f"unknown experiment {name!r}; the names are:\n{listing(known)}")
    if {"--help", "-help", "-h"} & set(flags):
        raise Refused(f"its flags are shown by launch/local {name} --help")
    if _taken(flags, "run_dir") is not None:
        raise Refused("--run_dir is for the launcher to give; give --output_dir or --resume")
    parent, earlier = _taken(flags, "output_dir"), _taken(flags, "resume")
    if parent is not None and earlier is not None:
        raise Refused("--output_dir and --resume exclude each other; drop one")
    if earlier is None:
        folder = _folder("output_dir", parent)
        return Request(name, tuple(flags), folder, _fresh(folder, name), resumed=False)
    folder = _folder("resume", earlier)
    if not folder.startswith(BUCKET):
        _require_run(Path(folder))
    parent, _, run = folder.rpartition("/")
    return Request(name, tuple(flags), parent, run, resumed=True)


def _taken(flags: list[str], name: str) -> str | None:
    """Takes a flag out of the others; its last value counts, as it would for the experiment."""
    value = None
    for i in reversed(range(len(flags))):
        found = re.fullmatch(rf"--?{name}(=(.*))?", flags[i], re.DOTALL)
        if found:
            words = 1 if found[1] else 2
            if words == 2 and i + 1 == len(flags):
                raise Refused(f"--{name} has no value; give a folder")
            given = found[2] if found[1] else flags[i + 1]
            value = given if value is None else value
            del flags[i : i + words]
    return value


def _folder(flag: str, given: str | None) -> str:
    if given == "":
        raise Refused(f"--{flag}= is empty; give a folder")
    if given is None or "://" not in given:
        return str(Path(given or "results").absolute())
    if not re.fullmatch(rf"{BUCKET}[a-z0-9][a-z0-9._-]+(/(?!\.\.?(/|$))[^/]+)+/?", given):
        raise Refused(f"--{flag}={given}: give {BUCKET}BUCKET/FOLDER")
    return given.rstrip("/")


def _fresh(parent: str, name: str) -> str:
    """The name of a folder of a run that is not there, as far as can be seen from here."""
    stamp = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    names = itertools.chain([stamp], (f"{stamp}-{i}" for i in itertools.count(2)))
    return next(one for one in names if not Path(parent, one).exists())


def _require_run(folder: Path) -> None:
    """Refuses what is no folder of a run, and one that a run on this file system writes to."""
    settings = folder / "settings.json"
    if not (settings.is_file() or (folder / RECORD).is_file()):
        raise Refused(f"--resume={folder}: no run is there; give the folder of an earlier one")
    try:
        with open(settings, "r+") as file:  # to lock over NFS is to write
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(
            f"--resume={folder}: a run writes to this folder now; wait for its end"
        ) from None
    except OSError:
        pass  # it was never begun, or this is a file system without locks
