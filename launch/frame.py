"""What all launchers of a place that is not this machine do alike: options, errors, Ctrl-C."""

import argparse
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import request
import shipping
from names import ROOT, experiments, listing, shared_by
from request import Request
from steps import Failed, Refused, Steps

OPTIONS = """\
    --allow_dirty          send files that are not as in the last commit too
    --dry_run              print what would be done, and do nothing
    --platform=            JAX_PLATFORMS there, without which nothing runs; by default that of the
                           devices asked for, so that without them JAX does not take the CPU
    --python=PATH          Python that has the packages, instead of that of .venv
    --help                 this text"""


class Launch(NamedTuple):
    """What a launcher is given.

    Attributes:
      options: options of the place.
      request: experiment, its flags and its folder.
      code: git revision of the code, "+changes" where the files differ from it.
      command: command line of the launcher.
      python: Python that has the packages.
      steps: doer of what is to be done.
    """

    options: argparse.Namespace
    request: Request
    code: str
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
    for switch in ("help", "dry_run", "allow_dirty"):
        parser.add_argument(f"--{switch}", action="store_true")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python")
    parser.add_argument("--platform")
    define(parser)
    options = parser.parse_args(["--help" if a == "-h" else a for a in arguments[:end]])
    if options.help:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
        print(f"{(doc or '').rstrip()}\n{OPTIONS}\n\nThe names:\n\n{listing(experiments())}")
        return 0
    steps = Steps(place, options.dry_run)
    try:
        asked = request.read(arguments[end:])
        code = shipping.revision(allow_dirty=options.allow_dirty)
        command = shlex.join([f"launch/{place}", *arguments])
        python = options.python.absolute()
        _require_flags(asked, python, check, steps)
        launch(Launch(options, asked, code, command, python, steps))
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


def at_least_one(text: str) -> int:
    """A count, as the type of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give 1 or more")
    return int(text)
