"""What all launchers of a place that is not this machine do alike: options, errors, Ctrl-C."""

import argparse
import shlex
import signal
from collections.abc import Callable
from typing import NamedTuple

import request
import shipping
from names import experiments, listing, shared_by
from request import Request
from steps import Failed, Refused, Steps

OPTIONS = """\
    --allow_dirty          send files that are not as in the last commit too
    --dry_run              print what would be done, and do nothing
    --help                 this text"""


class Launch(NamedTuple):
    """What a launcher is given.

    Attributes:
      options: options of the place.
      request: experiment, its flags and its folder.
      code: git revision of the code, "+changes" where the files differ from it.
      command: command line of the launcher.
      steps: doer of what is to be done.
    """

    options: argparse.Namespace
    request: Request
    code: str
    command: str
    steps: Steps


def main(
    place: str,
    doc: str | None,
    define: Callable[[argparse.ArgumentParser], None],
    launch: Callable[[Launch], None],
    arguments: list[str],
) -> int:
    """Reads the command line and launches.

    Args:
      place: name of the launcher.
      doc: text of --help.
      define: function that adds the options of the place to a parser.
      launch: function that checks and does.
      arguments: words of the command line after the launcher.

    Returns:
      The exit status: 0; 2 for what is refused, and nothing was started; that of a tool that
      failed; 1 where a file cannot be written; 130 after Ctrl-C.
    """
    end = next((i for i, a in enumerate(arguments) if not a.startswith("-")), len(arguments))
    usage = f"launch/{place} [options] NAME FLAGS…; --help lists them"
    parser = argparse.ArgumentParser(f"launch/{place}", usage, add_help=False, allow_abbrev=False)
    for switch in ("help", "dry_run", "allow_dirty"):
        parser.add_argument(f"--{switch}", action="store_true")
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
        launch(Launch(options, asked, code, command, steps))
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
