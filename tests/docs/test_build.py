"""The pages build, each link leads somewhere; their code is run by `test_programs.py`."""

import html
import importlib.util
import os
import re
import types
import zlib
from pkgutil import resolve_name

import pytest

from tests.several import ROOT, run_python

HERE = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_nb", "furo"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HERE, reason="the extra `docs` is not installed"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    words = ["-q", "-W", "--keep-going", "-D", "nb_execution_mode=off"]
    words += ["-D", "suppress_warnings=myst-nb.lexer"]  # a kernel, not started here, names it
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    run_python("-m", "sphinx", *words, ROOT / "docs", folder, env=environment)
    return folder


def test_the_pages_build_without_a_warning(built):
    assert (built / "notebooks" / "first_look.html").exists()
    page = (built / "experiments" / "compare_lengths.html").read_text(encoding="utf-8")
    assert 'href="../results/cpu/report.html"' in page  # not a download
    page = (built / "guides" / "routes.html").read_text(encoding="utf-8")
    assert re.search(r'href="../api/routes.html#attnlab.routes.Hard".*>routes.Hard\(\)<', page)
    page = (built / "api" / "models.html").read_text(encoding="utf-8")
    assert " object>" not in html.unescape(re.sub("<[^>]+>", "", page))


def test_each_public_name_stands_in_one_place_of_the_reference(built, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    docstrings = importlib.import_module("docstrings")
    shown = docstrings.Names().shown  # with the files of the packages that are imported by files
    public = {
        f"{module}.{x}" for module in docstrings.CONTENTS for x in resolve_name(module).__all__
    }
    public |= {name for name in shown.values() if name.startswith(docstrings.BY_FILE)}
    things = {name: resolve_name(name) for name in public if "._" not in name}

    places: dict[int, set[str]] = {}
    inventory = zlib.decompress((built / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    for line in inventory.splitlines():
        name, kind, _, place, _ = line.split(" ", 4)
        if kind in ("py:class", "py:data", "py:exception", "py:function"):
            places.setdefault(id(resolve_name(name)), set()).add(place.replace("$", name))
    found = {
        name: places.get(id(thing), set())
        for name, thing in things.items()
        if not isinstance(thing, types.ModuleType)
    }
    assert len(found) > 500
    assert {name: at for name, at in found.items() if len(at) != 1} == {}
