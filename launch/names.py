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
    """What may share the work of a run, as its `__main__` says it to `command_line.run`."""
    source = (ROOT / "experiments" / name / "__main__.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword("shared_by", ast.Constant(str(found))):
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
