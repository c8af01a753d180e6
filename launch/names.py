"""What the experiments say of themselves, read from their sources without importing them."""

import ast
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
    source = (ROOT / "experiments" / name / "__init__.py").read_text(encoding="utf-8")
    for line in ast.parse(source).body:
        match line:
            case ast.Assign([ast.Name("SHARED_BY")], ast.Constant(str(found))):
                return found
    return ""


def listing(names: dict[str, str]) -> str:
    """A line for each name."""
    return "\n".join(f"    {name:<18} {line}" for name, line in names.items())


def docstring(name: str) -> str:
    """What an experiment says of itself."""
    path = ROOT / "experiments" / name / "__init__.py"
    try:
        return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except SyntaxError as error:  # the list must still show the others
        return f"(does not parse: line {error.lineno})"
