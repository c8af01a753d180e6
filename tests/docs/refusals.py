"""The page of refusals: each call on it, and the line that it gets today.

python -m tests.docs.refusals writes the lines anew; the diff is what changed for users.
"""

import ast
import doctest
import re

from tests.several import ROOT

PAGE = ROOT / "docs" / "refusals.md"
_BLOCK = re.compile(r"(?<=^```python\n).*?(?=^```)", re.S | re.M)


def rewrite(page: str) -> str:
    """The page with the lines that its calls get; what is no expression is what they need."""
    names: dict = {}
    return _BLOCK.sub(lambda block: _rewrite_block(block[0], names), page)


def _rewrite_block(code: str, names: dict) -> str:
    written = []
    for part in doctest.DocTestParser().parse(code):
        if not isinstance(part, doctest.Example):
            written.append(part)
            continue
        lines = part.source.splitlines(keepends=True)
        written.append(">>> " + "... ".join(lines))
        try:
            if not isinstance(ast.parse(part.source).body[0], ast.Expr):
                exec(part.source, names)
                continue
            eval(part.source, names)
            line = "It is not refused."
        except Exception as error:
            line = f"{type(error).__name__}: {error}"
        written.append(f"{line}\n")
    return "".join(written)


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
