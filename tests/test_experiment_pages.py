"""Pages of experiments and mechanisms take their numbers from kept reports, and leave none out."""

import re

import pytest

from tests.launch.test_documented_lines import experiment_and_flags, lines
from tests.several import ROOT

LINES = {"experiments": 60, "mechanisms": 80}  # that a page may have
PAGES = [path for folder in LINES for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
INCLUDED = re.compile(r"^```\{include\} (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r'^:(start-after|end-before): "(.*)"$', re.MULTILINE)
# A number alone may be a setting; one with such a unit, or with an error, was measured.
MEASURED = re.compile(r"\d ?(?:%|[mµ]?s\b|[KMG]i?B\b|times\b|BLEU\b|bits\b|points\b)|± ?\d")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pages
def test_what_a_page_includes_is_in_the_report(page):
    for path, options in INCLUDED.findall(page.read_text(encoding="utf-8")):
        text = (page.parent / path).read_text(encoding="utf-8")
        for kind, marker in MARKER.findall(options):
            before, separator, after = text.partition(marker.replace(r"\n", "\n"))
            assert separator, (path, marker)
            text = after if kind == "start-after" else before
        # A table, and no link or figure, which would be looked for beside the page.
        assert re.search(r"^\| -+", text, re.MULTILINE) and "](" not in text, (path, options)


@pages
def test_no_measured_number_is_typed(page):
    prose = INCLUDED.sub("", page.read_text(encoding="utf-8"))
    prose = re.sub(r"`[^`]*`|^ {4}.*$", "", prose, flags=re.MULTILINE)
    assert not MEASURED.findall(prose)
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LINES[page.parent.name]


def test_every_experiment_has_a_page():
    shown = {experiment_and_flags(line)[0] for line in lines("docs/experiments/*.md")}
    folders = {path.parent.name for path in (ROOT / "experiments").glob("*/__main__.py")}
    assert folders and shown >= folders
