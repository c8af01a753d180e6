"""Names of attnlab that the pages write down are there."""

import importlib
import pkgutil
import re
from types import ModuleType

import pytest

import attnlab
from tests.docs.pages import pages

PAGES = {
    f"{folder}/{name}": text
    for folder in ("guides", "coming_from", "mechanisms")
    for name, text in pages(folder).items()
}
# `attnlab.x.y`, and the modules that examples import from it.
NAME = re.compile(r"(?<![\w./])(?:attnlab|biases|masks|positions|routes|scores)(?:\.[A-Za-z]\w*)+")


def is_there(name: str) -> bool:
    first, *rest = name.removeprefix("attnlab.").split(".")
    found, path = importlib.import_module("attnlab"), "attnlab"
    for part in (first, *rest):
        path += f".{part}"
        try:
            found = getattr(found, part, None) or importlib.import_module(path)
        except ImportError:
            return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_names_are_there(page):
    assert not [name for name in dict.fromkeys(NAME.findall(PAGES[page])) if not is_there(name)]


def test_the_reference_begins_with_a_table_of_the_names():
    table = re.findall(r"^   (\w+)$", pages("api")["attnlab"], re.M)
    names = {x for x in attnlab.__all__ if not isinstance(getattr(attnlab, x), ModuleType)}
    assert len(table) == len(names) and set(table) == names


@pytest.mark.parametrize("package", ["bench", "data", "runs", "studies", "training"])
def test_each_file_of_a_package_has_a_section_of_the_reference(package):
    within = importlib.import_module(f"attnlab.{package}")
    files = {file.name for file in pkgutil.walk_packages(within.__path__, f"{within.__name__}.")}
    sections = re.findall(r"automodule:: (\S+)", pages("api")[package])
    assert files == set(sections) - {within.__name__}


def test_a_name_that_is_not_there_is_found():
    names = NAME.findall("`attnlab.masks.Causal`, `masks.Past`, `attnlab.flash`, docs/masks.md")
    assert [is_there(name) for name in names] == [True, False, False]
