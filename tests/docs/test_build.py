"""The pages build, each link leads somewhere; their code is run by `test_programs.py`."""

import html
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

HERE = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_nb", "furo"))


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="the extra `docs` is not installed")
def test_the_pages_build_without_a_warning(tmp_path):
    words = ["-q", "-W", "--keep-going", "-D", "nb_execution_mode=off"]
    words += ["-D", "suppress_warnings=myst-nb.lexer"]  # a kernel, not started here, names it
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(ROOT / "docs"), str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notebooks" / "first_look.html").exists()
    page = (tmp_path / "guides" / "routes.html").read_text(encoding="utf-8")
    assert re.search(r'href="../api/routes.html#attnlab.routes.Hard".*>routes.Hard\(\)<', page)
    page = (tmp_path / "api" / "models.html").read_text(encoding="utf-8")
    assert " object>" not in html.unescape(re.sub("<[^>]+>", "", page))
