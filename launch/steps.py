"""The steps of a launcher: each is shown, and with --dry_run only shown."""

import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path


class Refused(Exception):
    """A command that cannot be meant, or cannot work here; the message says why."""


class Failed(Exception):
    """A tool failed.

    Attributes:
      status: exit status of the tool.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Steps:
    """Runs tools and writes files.

    Attributes:
      place: name of the launcher.
      dry_run: whether only to print what would be done.
      running: words on work that may go on when the launcher ends; "" = none was started.
    """

    def __init__(self, place: str, dry_run: bool):
        self.place, self.dry_run, self.running = place, dry_run, ""

    def say(self, text: str) -> None:
        """Tells the user, apart from what tools print."""
        print(f"launch/{self.place}: {text}", file=sys.stderr, flush=True)

    def need(self, tool: str, remedy: str) -> None:
        """Refuses to go on without a tool; a dry run only says that it is missing."""
        if shutil.which(tool) is None:
            self.lack(f"{tool} is not installed here; {remedy}")

    def lack(self, words: str) -> None:
        """Refuses to go on without what the words say is missing; a dry run only says them."""
        if not self.dry_run:
            raise Refused(words)
        self.say(f"note: {words}")

    def run(self, *command: str, stdin: Path | None = None) -> None:
        """Runs a tool, whose output is the user's to see.

        Raises:
          Failed: it ended with another status than 0.
        """
        _check(command, self.status(*command, stdin=stdin))

    def status(self, *command: str, stdin: Path | None = None) -> int:
        """Runs a tool, whose output is the user's to see; returns its exit status."""
        self._show(command, stdin)
        if self.dry_run:
            return 0
        with open(stdin or "/dev/null", "rb") as file:
            return subprocess.run(command, stdin=file).returncode

    def ask(self, *command: str) -> str:
        """The output of a tool; of a dry run, "".

        Raises:
          Failed: it ended with another status than 0.
        """
        self._show(command)
        if self.dry_run:
            return ""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        _check(command, done.returncode)
        return done.stdout

    def write(self, path: Path, text: str, mode: str = "w") -> None:
        """Writes a file, or with mode "a" adds to it; a dry run shows the text."""
        if self.dry_run:
            print(f"# {'adds to' if mode == 'a' else 'writes'} {path}:\n{text.rstrip()}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, mode, encoding="utf-8") as file:
                file.write(text)

    def unpack(self, archive: Path, folder: Path) -> None:
        """Unpacks an archive into a folder, made first; one that is there has the same files."""
        if self.dry_run:
            print(f"# unpacks the code to {folder}")
        elif not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(archive) as tar:
                # Python 3.11.3 and before have no filters; newer ones warn without.
                tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
                tar.extractall(part)
            part.rename(folder)

    def _show(self, command: Sequence[str], stdin: Path | None = None) -> None:
        line = shlex.join(command) + (f" < {shlex.quote(str(stdin))}" if stdin else "")
        print(line, file=sys.stdout if self.dry_run else sys.stderr, flush=True)


def _check(command: Sequence[str], status: int) -> None:
    if status:
        status = 128 - status if status < 0 else status
        raise Failed(f"{shlex.join(command[:3])} … ended with status {status}", status)
