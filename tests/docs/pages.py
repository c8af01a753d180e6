"""What the tests of the pages share: which pages there are, and what is in them."""

import re

from tests.several import ROOT

CODE = re.compile(r"^```(?:python|\{code-cell\} ipython3)\n(?::.*\n)*(.*?)^```", re.S | re.M)


def pages(folder: str) -> dict[str, str]:
    """The texts of the pages of docs/`folder`, by their names."""
    files = sorted((ROOT / "docs" / folder).glob("*.md"))
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


def blocks(text: str) -> list[str]:
    """The code of a page, in order."""
    return CODE.findall(text)
