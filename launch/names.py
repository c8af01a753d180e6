"""The experiments by name: what their sources say, without importing them, and their flags."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def experiments() -> dict[str, str]:
    """Maps the experiments' names to the first lines of their docstrings."""
    return {
        path.parent.name: docstring(path.parent.name).partition("\n")[0]
        for path in sorted((ROOT / "experiments").glob("*/__main__.py"))
    }


def shared_by(name: str) -> str:
    """What may share the work of a run: "processes", "jobs" of an array, or "" where nothing may.

    An experiment says it in its `__init__.py`, as SHARED_BY.
    """
    for line in _source(name).body:
        match line:
            case ast.Assign([ast.Name("SHARED_BY")], ast.Constant(str(found))):
                return found
    return ""


def _source(name: str) -> ast.Module:
    """Its `__init__.py`, empty where there is none yet."""
    path = ROOT / "experiments" / name / "__init__.py"
    return ast.parse(path.read_text(encoding="utf-8") if path.exists() else "", str(path))


def listing(names: dict[str, str]) -> str:
    """A line for each name."""
    return "\n".join(f"    {name:<18} {line}" for name, line in names.items())


def docstring(name: str) -> str:
    """What an experiment says of itself."""
    return ast.get_docstring(_source(name)) or ""


def take(flags: list[str], name: str) -> str | None:
    """Takes a flag out of the others; its last value counts, as it would for the experiment.

    Returns:
      Its value, "" where none is given; None where the flag is not there.
    """
    value = None
    for i in reversed(range(len(flags))):
        if match := re.fullmatch(rf"--?{name}(?:=(.*))?", flags[i], re.DOTALL):
            words = 1 if match[1] is not None else 2
            given = match[1] if words == 1 else "".join(flags[i + 1 : i + 2])
            value = given if value is None else value
            del flags[i : i + words]
    return value
