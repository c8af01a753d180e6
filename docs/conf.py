"""How the pages are built: `launch/local docs`."""

import os
import re
import subprocess
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # the pages are the same wherever they are built

import jax
from typing_extensions import TypeAliasType

# Before attnlab uses them: unions of many types, shown by their names.
jax.typing.ArrayLike = TypeAliasType("ArrayLike", jax.typing.ArrayLike)
jax.lax.PrecisionLike = TypeAliasType("PrecisionLike", jax.lax.PrecisionLike)

import attnlab  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py


def _repository():
    """Where the clone is from, for links to the sources; "" where nobody could open that."""
    command = ["git", "-C", Path(__file__).parent, "remote", "get-url", "origin"]
    try:
        url = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
    return url.removesuffix(".git") if url.startswith("https://") else ""


project = "attnlab"
author = "The attnlab authors"
copyright = "2026, The attnlab authors"  # noqa: A001
version = release = attnlab.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # equations need no network, so a page on a cluster shows them
    "sphinx_copybutton",
    "docstrings",
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
highlight_language = "text"  # of literal blocks in docstrings
nitpicky = True
nitpick_ignore_regex = [
    # Other libraries: pages are built without a network, so there is nothing to link to.
    ("py:.*", r"(collections|flax|grain|jax|jaxlib|matplotlib|numpy|optax|orbax|pathlib)\..*"),
    ("py:.*", r"(signal|types|typing)\..*"),
    ("py:class", r"(.*\.)?(ArrayLike|PrecisionLike|Fill|Item|Row|[A-Z])"),  # names of types
    ("py:class", "attnlab.ops.lsh.running_mean.RunningMean"),  # a field of DecodeState
]

nb_execution_mode = "cache"  # a notebook runs again when its text changes; CI keeps the cache
nb_execution_timeout = 600
nb_merge_streams = True  # the lines that a cell prints are one block

autodoc_default_options = {"members": True, "special-members": "__call__"}
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # a method is described where it is defined
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "attnlab"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["figures.css"]
if repository := _repository():
    html_theme_options = {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
        "footer_icons": [{"name": "", "url": repository, "html": "Repository", "class": ""}],
    }


def link_outside(app, docname, source):
    """Leads links to pages beside docs/, which GitHub shows, to where they are shown here.

    Kept reports, of which docs/results is a link to the folder, are pages that no menu lists.
    """

    def shown(link):
        path = os.path.normpath(os.path.join("docs", os.path.dirname(docname), link[2]))
        page = re.fullmatch(r"(?:docs|experiments)/(results/.*|README)\.md", path)
        if page:
            return f"{{doc}}`{link[1]} </{page[1].replace('README', 'experiments')}>`"
        outside = not path.startswith("docs/")
        return f"{{download}}`{link[1]} <{link[2]}>`" if outside else link[0]

    source[0] = re.sub(r"(?<!!)\[([^][]+)\]\(([^)#:]+\.md)\)", shown, source[0])
    if docname.startswith("results/"):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def open_figures(app, pagename, templatename, context, doctree):
    """Has a figure that is touched open alone, where a phone can enlarge it, not be downloaded."""
    context["body"] = re.sub(r' download=""(?= href="[^"]*\.svg")', "", context.get("body", ""))


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", link_outside)
    app.connect("html-page-context", open_figures)
    # It only copies files, when all is built. Notebooks then run side by side, one on each core.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
