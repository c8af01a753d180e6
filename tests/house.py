"""How large each folder is, as `tests/house.toml` caps it: python -m tests.house prints that file.

Code lines are those of statements: no docstring, comment, blank line or import.
"""

import ast
import functools
import gc
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("attnlab", "experiments", "launch", "tests")
COUNTED = ("code", "files", "public", "flags", "raises")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def parse(text: str) -> ast.Module:
    """The syntax tree of a module.

    Without a collection of garbage meanwhile: there Python 3.11 may let another thread in, and of
    two threads that parse it confuses the depths (CPython's issue 106905).
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


@functools.cache
def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all rules on files."""
    return parse(path.read_text(encoding="utf-8"))


def count_code_lines(text: str) -> int:
    """The code lines of a module.

    >>> count_code_lines('"What it is."' + chr(10) * 2 + "import os" + chr(10) + "x = 1  # one")
    1
    """
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.difference_update(_lines_of(node))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            lines.difference_update(_lines_of(node.body[0]))
    return len(lines)


def count_folders() -> dict[str, Counter]:
    """What `COUNTED` names, by folder; a folder's own files, not those of folders in it."""
    folders: dict[str, Counter] = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            counts = folders.setdefault(path.parent.relative_to(ROOT).as_posix(), Counter())
            text = path.read_text()
            counts["code"] += count_code_lines(text)
            counts["files"] += 1
            tree = parse_file(path)
            counts["public"] += sum(_is_public(node) for node in tree.body)
            for node in ast.walk(tree):
                called = node.func if isinstance(node, ast.Call) else None
                name = called.id if isinstance(called, ast.Name) else ""
                counts["flags"] += name == "flag"
                raises = isinstance(node, ast.Raise) and node.exc is not None
                counts["raises"] += raises or name.startswith("require")
    return folders


def written(folders: dict[str, Counter]) -> str:
    """The folders as TOML, a line each."""
    lines = []
    for folder, counts in folders.items():
        numbers = ", ".join(f"{name} = {counts[name]}" for name in COUNTED)
        lines.append(f'"{folder}" = {{ {numbers} }}')
    return "\n".join(lines)


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_public(node: ast.stmt) -> bool:
    """Whether the statement defines a function, a class or a constant without an underscore."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return not node.name.startswith("_")
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return any(not name.startswith("_") for name in names)


if __name__ == "__main__":
    print(written(count_folders()))
