"""The examples in docstrings show what is computed."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = re.compile(r"^\s*>>> ", re.M)
FILES = {
    str(path.relative_to(ROOT)): number
    for path in sorted((ROOT / "attnlab").rglob("*.py"))
    if (number := len(EXAMPLE.findall(path.read_text(encoding="utf-8"))))
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("file", FILES)
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
