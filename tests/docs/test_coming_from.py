"""Pages for people who come from elsewhere: both sides of an example give the same numbers."""

import ast
import importlib.util

import jax
import numpy as np
import pytest

from tests.daily import daily
from tests.docs.pages import blocks, pages

PAGES = pages("coming_from")
NOT_COMPARED = {"trax"}  # which cannot be installed beside a JAX of today


def imported(text):
    """The packages that the code of a page imports."""
    nodes = [node for code in blocks(text) for node in ast.walk(ast.parse(code))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", daily(PAGES, "jax_nn"))
def test_both_sides_give_the_same_numbers(name):
    missing = [x for x in imported(PAGES[name]) if importlib.util.find_spec(x) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, of the extra compat")
    program: dict = {}
    for i, code in enumerate(blocks(PAGES[name])):
        with jax.numpy_rank_promotion("allow"):  # Keras counts on it
            exec(compile(code, f"{name}.md, example {i}", "exec"), program)
        if name not in NOT_COMPARED:
            theirs, ours = program.pop("theirs"), program.pop("ours")
            theirs = theirs.detach() if hasattr(theirs, "detach") else theirs
            np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5, atol=2e-6)


def test_each_page_is_read_in_a_minute():
    assert len(PAGES) >= 8
    assert not {name: n for name, text in PAGES.items() if (n := text.count("\n")) > 70}
