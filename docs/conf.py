"""How the pages are built: `launch/local docs`."""

import attnlab

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
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

nb_execution_mode = "cache"  # a notebook runs again when its text changes
nb_execution_raise_on_error = True
nb_execution_timeout = 600

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "attnlab"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["figures.css"]
