"""The code as it is sent to another machine: the checkout's files, with their git revision."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path

from names import ROOT
from steps import Refused, Steps

# Read by `attnlab.runs.provenance`, so that results say their revision where there is no git.
REVISION = "REVISION"
RECORD = "launch.jsonl"  # in the folder of a run: for each launch, command and revision
_RESULTS = "experiments/results/"  # not sources, and most of the bytes


def revision(*, allow_dirty: bool) -> str:
    """The git revision of this checkout, with "+changes" where its files differ from it.

    Raises:
      Refused: they differ and that is not allowed, or this is no git checkout.
    """
    head = _git("rev-parse", "--short=12", "HEAD").decode().strip()
    changed = _git("status", "--porcelain", "-z", "--untracked-files=all").decode().split("\0")
    changes = [line[3:] for line in changed if line]
    if changes and not allow_dirty:
        shown = ", ".join(changes[:3])
        if len(changes) > 3:
            shown += f" and {len(changes) - 3} more"
        raise Refused(f"{shown}: not as in any commit; commit, or --allow_dirty sends them as well")
    return f"{head}+changes" if changes else head


def archive(path: Path, code: str) -> str:
    """Writes the files of this checkout, and their revision `code`, to a .tar.gz.

    Returns a name for what is in it: the revision, and where the files differ from that, a hash of
    them.
    """
    names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
    contents = io.BytesIO()
    with tarfile.open(fileobj=contents, mode="w") as tar:
        for name in sorted(set(filter(None, names.split("\0")))):
            if not name.startswith(_RESULTS) and (ROOT / name).exists():
                tar.add(ROOT / name, name, recursive=False)
        about = tarfile.TarInfo(REVISION)
        about.size = len(code)
        tar.addfile(about, io.BytesIO(code.encode()))
    path.write_bytes(gzip.compress(contents.getvalue()))
    changed = hashlib.sha256(contents.getvalue()).hexdigest()[:8]
    return code.replace("+changes", f"-changes-{changed}")


def record(folder: Path, command: str, code: str, steps: Steps) -> None:
    """Adds a launch to what the folder of a run, or its part on this machine, keeps of them."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {"command": command, "revision": code, "time": now}
    steps.write(folder / RECORD, json.dumps(row) + "\n", "a")


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True)
    except FileNotFoundError:
        raise Refused("git is not installed; the code is sent at a git revision") from None
    if done.returncode:
        raise Refused(f"{ROOT}: {done.stderr.decode().strip()}; use a git checkout with a commit")
    return done.stdout
