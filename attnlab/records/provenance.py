"""Where a result came from: device, versions, git revision."""

import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path

__all__ = ["processor", "revision", "version"]


def version(package: str) -> str:
    """The installed version, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def revision() -> str:
    """The git revision of these sources, with "+changes" when files differ from it; else ""."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", __file__):  # installed inside someone else's repository
            return ""
        return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(git("status", "--short"))
    except OSError:  # no git
        return ""


def processor() -> str:
    """The name of this machine's CPU."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "CPU"
