"""Where a result came from: device, versions, git revision."""

import importlib.metadata
import platform
import re
import subprocess
import tomllib
from pathlib import Path

__all__ = ["processor", "revision", "version"]

_ROOT = Path(__file__).resolve().parents[2]
# What a result depends on; results that are kept among the sources are not.
_SOURCES = ("attnlab", "experiments", ":(exclude)experiments/results")


def version(package: str) -> str:
    """The installed version, or "not installed"; of attnlab, that of these sources."""
    if package == "attnlab" and (_ROOT / "pyproject.toml").is_file():  # in a checkout
        return tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def revision() -> str:
    """The git revision of these sources, with "+changes" when they differ from it; else ""."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", _ROOT, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", __file__):  # installed inside someone else's repository
            return ""
        changes = git("status", "--short", "--untracked-files=all", "--", *_SOURCES)
        return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(changes)
    except OSError:  # no git
        return ""


def processor() -> str:
    """The name of this machine's CPU."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "CPU"
