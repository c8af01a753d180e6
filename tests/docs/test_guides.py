"""The code of each guide runs by itself; it checks its own numbers."""

import os
import subprocess
import sys

import pytest

from tests.daily import daily
from tests.docs.pages import ROOT, blocks, pages

GUIDES = {name: code for name, text in pages("guides").items() if (code := blocks(text))}


@pytest.mark.parametrize("name", daily(GUIDES))
def test_the_code_of_a_guide_runs(name):
    """In a process of its own: one of them makes its devices."""
    code = "\n".join(GUIDES[name])
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONWARNINGS="error::DeprecationWarning")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_guides_check_their_numbers():
    assert len(GUIDES) >= 7
    assert not [name for name, code in GUIDES.items() if "assert" not in "\n".join(code)]
