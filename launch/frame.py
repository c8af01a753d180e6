"""The common frame of all launchers of a place that is not this machine.

They read [options] NAME FLAGS…, have the experiment check its flags, and say how a launch ended.
"""

import argparse
import dataclasses
import datetime
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import shipping
from names import ROOT, experiments, listing, shared_by, take
from steps import Failed, Refused, Steps

BUCKET = "gs://"
OPTIONS = """\
    --allow_dirty          send files that are not as in the last commit too
    --dry_run              print what would be done, and do nothing
    --platform=            JAX_PLATFORMS there, without which nothing runs; by default that of the
                           devices asked for, so that without them JAX does not take the CPU
    --python=PATH          Python that has the packages, instead of that of .venv
    --help                 this text"""


@dataclasses.dataclass(frozen=True)
class Request:
    """An experiment, its flags, and the folder of its run.

    Attributes:
      name: name of the experiment.
      flags: flags for it, without those that say where results go.
      parent: folder of the folder of the run, on this machine or gs://BUCKET/FOLDER.
      run: name of the folder of the run, with random letters: two may begin in one second.
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


class Launch(NamedTuple):
    """What a launcher is given.

    Attributes:
      options: options of the place.
      request: experiment, its flags and its folder.
      code: git revision of the code, "+changes" where the files differ from it.
      archive: file of the code.
      version: name of what is in the archive.
      command: command line of the launcher.
      python: Python that has the packages.
      steps: doer of what is to be done.
    """

    options: argparse.Namespace
    request: Request
    code: str
    archive: Path
    version: str
    command: str
    python: Path
    steps: Steps


def main(
    place: str,
    doc: str | None,
    define: Callable[[argparse.ArgumentParser], None],
    launch: Callable[[Launch], None],
    arguments: list[str],
    *,
    check: str = "flags",
) -> int:
    """Reads the command line and launches.

    Args:
      place: name of the launcher.
      doc: text of --help.
      define: function that adds the options of the place to a parser.
      launch: function that checks and does.
      arguments: words of the command line after the launcher.
      check: kind of --check that the experiment makes of its flags first; "files" where those that
        they name are seen from here.

    Returns:
      The exit status: 0; 2 for what is refused, and nothing was started; that of a tool that
      failed; 1 where a file cannot be written; 130 after Ctrl-C.
    """
    end = next((i for i, a in enumerate(arguments) if not a.startswith("-")), len(arguments))
    usage = f"launch/{place} [options] NAME FLAGS…; --help lists them"
    parser = argparse.ArgumentParser(f"launch/{place}", usage, add_help=False, allow_abbrev=False)
    for switch in ("dry_run", "allow_dirty"):
        parser.add_argument(f"--{switch}", action="store_true")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python")
    parser.add_argument("--platform")
    define(parser)
    if {"--help", "-h"} & set(arguments[:end]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
        print(f"{(doc or '').rstrip()}\n{OPTIONS}\n\nThe names:\n\n{listing(experiments())}")
        return 0
    options = parser.parse_args(arguments[:end])
    steps = Steps(place, options.dry_run)
    try:
        asked = _read(arguments[end:])
        code = shipping.revision(allow_dirty=options.allow_dirty)
        command = shlex.join([f"launch/{place}", *arguments])
        python = options.python.absolute()
        _require_flags(asked, python, check, steps)
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch, "code.tar.gz")
            version = shipping.archive(archive, code)
            launch(Launch(options, asked, code, archive, version, command, python, steps))
    except Refused as error:
        steps.say(str(error))
        return 2
    except (Failed, OSError) as error:
        steps.say(f"{error}; {steps.running or 'nothing was started'}")
        return error.status if isinstance(error, Failed) else 1
    except KeyboardInterrupt:
        steps.say(f"interrupted; {steps.running or 'nothing was started'}")
        return 128 + signal.SIGINT
    return 0


def _read(words: Sequence[str]) -> Request:
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
    if take(flags, "run_dir") is not None:
        raise Refused("--run_dir is for the launcher to give; give --output_dir or --resume")
    parent, earlier = take(flags, "output_dir"), take(flags, "resume")
    if parent is not None and earlier is not None:
        raise Refused("--output_dir and --resume exclude each other; drop one")
    if earlier is None:
        folder = _folder("output_dir", parent)
        run = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        return Request(name, tuple(flags), folder, run, resumed=False)
    folder = _folder("resume", earlier)
    files = ("settings.json", shipping.RECORD)
    if not folder.startswith(BUCKET) and not any(Path(folder, file).is_file() for file in files):
        raise Refused(f"--resume={folder}: no run is there; give the folder of an earlier one")
    parent, _, run = folder.rpartition("/")
    return Request(name, tuple(flags), parent, run, resumed=True)


def _folder(flag: str, given: str | None) -> str:
    if given == "":
        raise Refused(f"--{flag} has no value; give a folder")
    if given is None or "://" not in given:
        return str(Path(given or "results").absolute())
    if not re.fullmatch(rf"{BUCKET}[a-z0-9][a-z0-9._-]+(/(?!\.\.?(/|$))[^/]+)+/?", given):
        raise Refused(
            f"--{flag}={given}: give {BUCKET}BUCKET/FOLDER, such as {BUCKET}my-bucket/runs; the "
            "name of a bucket has three characters or more, and no capital letters"
        )
    return given.rstrip("/")


def _require_flags(request: Request, python: Path, check: str, steps: Steps) -> None:
    """Has the experiment itself read its flags, before anything is sent or waits in a queue.

    Raises:
      Refused: it does not take them, or there is no Python with its packages.
    """
    if not os.access(python, os.X_OK):
        steps.lack(
            f"{python}: no Python is there, which checks the flags; make .venv by launch/local "
            f"{request.name} --check=words, or give --python=PATH"
        )
        return
    words = ["--no_env", request.name, *request.flags]
    if request.resumed:  # its folder has the other flags; one on a bucket is not seen from here
        words += [] if request.on_bucket else [f"--run_dir={request.folder}"]
        check = "words" if request.on_bucket else check
    done = subprocess.run(
        [ROOT / "launch" / "local", *words, f"--check={check}"],
        env={**os.environ, "ATTNLAB_PYTHON": str(python), "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise Refused(said or f"{request.name}: the check ended with status {done.returncode}")


def require_shared(name: str, processes: int, given: str, remedy: str) -> None:
    """Refuses several processes for an experiment that runs in one.

    Raises:
      Refused: the processes, which `given` names, would each do the whole work.
    """
    if processes > 1 and shared_by(name) != "processes":
        raise Refused(f"{given}: {name} runs in one process; {remedy}")


def require_bucket(request: Request, steps: Steps) -> None:
    """Asks for the bucket of a run, and says what a mount of it will not do.

    Raises:
      Failed: it is not there, or not to be seen from here.
    """
    steps.need("gcloud", "cloud.google.com/sdk/docs/install")
    bucket = f"{BUCKET}{request.bucket}"
    wanted = "--format=value(hierarchical_namespace.enabled)"
    answer = steps.ask("gcloud", "storage", "buckets", "describe", bucket, wanted).strip()
    if not steps.dry_run and answer != "True":
        steps.say(
            f"note: {bucket} has no hierarchical namespace, so that a host that is killed while it "
            "renames a checkpoint leaves a part of it; make another with "
            "--enable-hierarchical-namespace"
        )


def fill(template: str, values: dict[str, Any]) -> str:
    """A file of launch/templates, with each $name in it as JSON, which is YAML too."""
    text = (ROOT / "launch" / "templates" / template).read_text(encoding="utf-8")
    # As they are: YAML does not join the two escapes that JSON has for an emoji.
    written = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return Template(text).substitute(written)


def at_least_one(text: str) -> int:
    """A count, as the type of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give 1 or more")
    return int(text)
