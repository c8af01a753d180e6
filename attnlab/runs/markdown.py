"""Markdown tables, and what stands in one cell or sentence."""

from collections.abc import Sequence

_NAMED = 6  # texts of a list that are written; the others are counted


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text; one that is empty is left out.

    >>> print(markdown_table(["n", "not at", "MiB"], [["1024", "", "96"], ["64K", "", "≈ 120"]]))
    | n    |   MiB |
    | ---- | ----: |
    | 1024 |    96 |
    | 64K  | ≈ 120 |
    """
    kept = [i for i in range(len(header)) if not rows or any(row[i] for row in rows)]
    header = [header[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in [header, *body])) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join([first, *rest]) + " |"

    return "\n".join([line(header), line(rule), *map(line, body)])


def join_first(texts: Sequence[str]) -> str:
    """The first texts of a list, and how many more there are.

    >>> join_first("abc"), join_first("abcdefgh")
    ('a; b; c', 'a; b; c; d; e; f; and 2 more')
    """
    more = len(texts) - _NAMED
    counted = [f"and {more} more"] if more > 0 else []
    return "; ".join([*texts[:_NAMED], *counted])
