"""Docstrings: examples show what is computed, descriptions of arguments say what they are."""

import ast
import doctest
import importlib
import re

import pytest

from tests.daily import daily
from tests.house import parse_file
from tests.several import ROOT

EXAMPLE = re.compile(r"^\s*>>> ", re.M)
FILES = {
    str(path.relative_to(ROOT)): number
    for path in sorted((ROOT / "attnlab").rglob("*.py"))
    if (number := len(EXAMPLE.findall(path.read_text(encoding="utf-8"))))
}
# Whole models, and what compiles most: all that they compute is tested elsewhere, every day.
COMPILING = {
    "attnlab/models/bert/__init__.py",
    "attnlab/modules/single_head.py",
    "attnlab/ops/__init__.py",
    "attnlab/ops/lsh/__init__.py",
    "attnlab/ops/lsh/attention.py",
    "attnlab/testing/contracts.py",
    "attnlab/models/__init__.py",
    "attnlab/modules/__init__.py",
    "attnlab/modules/flax_interop.py",
    "attnlab/ops/lsh/cross.py",
    "attnlab/ops/lsh/quality.py",
    "attnlab/training/decode/single.py",
    "attnlab/models/reformer/__init__.py",
    "attnlab/models/transformer/__init__.py",
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("file", daily(FILES, *(set(FILES) - COMPILING)))
def test_examples(file):
    module = importlib.import_module(
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert sum(len(test.examples) for test in found) == FILES[file]
    runner, said = doctest.DocTestRunner(verbose=False, optionflags=FLAGS), []
    for test in found:
        runner.run(test, out=said.append)
    assert not said, "".join(said)


# Where a description must begin with a noun phrase: it is understood without its neighbors.
DESCRIBED = ("attnlab", "experiments", "launch")
HEADING = re.compile(r"\s*(\w+):$")
DESCRIPTION = re.compile(r"(\s*)\*{0,2}(\w+): (.*)")
# Functions may begin with their signature, booleans with "whether".
STUMP = re.compile(
    r"(of|in|as|from|with|for|by|at|on|under|behind|among|beside|between|per|to"
    r"|also|both|and|or|likewise|ditto|the same|those|it|its|they|their|he"
    r"|that|which|what|how|where|when|who|whose|takes|told|given|gets)\b",
    re.I,
)


def descriptions(path):
    """(name of the class or function, argument, its description) for all docstrings of a file."""
    for node in ast.walk(parse_file(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        section = None
        for line in (ast.get_docstring(node) or "").splitlines():
            if heading := HEADING.fullmatch(line):
                section = heading[1]
            elif section in ("Args", "Attributes") and (found := DESCRIPTION.fullmatch(line)):
                if found[1] == "  ":  # deeper lines go on with a description
                    yield node.name, found[2], found[3]


def test_a_stump_is_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('''class A:
    """All.

    Attributes:
      params: of it.
      x: whether so, and where
        it is: of what.
    """
''')
    found = list(descriptions(path))
    assert found == [("A", "params", "of it."), ("A", "x", "whether so, and where")]
    assert [bool(STUMP.match(text)) for *_, text in found] == [True, False]


def test_every_description_begins_with_a_noun():
    files = [path for folder in DESCRIBED for path in sorted((ROOT / folder).rglob("*.py"))]
    stumps = [
        f"{path.relative_to(ROOT)}: {owner}({argument}: {text})"
        for path in files
        for owner, argument, text in descriptions(path)
        if STUMP.match(text)
    ]
    assert not stumps, "say what it is, not only whose:\n" + "\n".join(stumps)
