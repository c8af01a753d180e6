"""The code of each page runs by itself; guides and mechanisms check their own numbers."""

import os

import pytest

from tests.daily import daily
from tests.docs.pages import blocks, pages
from tests.several import ROOT, run_python

GUIDES = {name: code for name, text in pages("guides").items() if (code := blocks(text))}
NOTEBOOKS = {name: blocks(text) for name, text in pages("notebooks").items()}
MECHANISMS = {name: blocks(text) for name, text in pages("mechanisms").items()}


@pytest.mark.parametrize("name", daily([*GUIDES, *NOTEBOOKS, *MECHANISMS]))
def test_the_code_of_a_page_runs(name, tmp_path):
    """In a process of its own: some of them make their devices."""
    code = "\n".join((GUIDES | NOTEBOOKS | MECHANISMS)[name])
    environment = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        PYTHONWARNINGS="error::DeprecationWarning",
        MPLBACKEND="agg",
    )
    run_python("-c", code, cwd=tmp_path, env=environment)


def test_guides_and_mechanisms_check_their_numbers():
    assert len(GUIDES) >= 7 and len(NOTEBOOKS) == 7 and len(MECHANISMS) == 7
    checked = GUIDES | MECHANISMS
    assert len(checked) == len(GUIDES) + len(MECHANISMS)  # a page hides no other of its name
    assert not [name for name, code in checked.items() if "assert" not in "\n".join(code)]
