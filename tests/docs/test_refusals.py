"""Each wrong call of the page of refusals gets the line that stands there."""

from tests.docs.refusals import PAGE, rewrite


def test_each_call_gets_its_line():
    """What changed is written by python -m tests.docs.refusals, and read as a diff."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(">>> ") > 150 and "It is not refused." not in page
    assert rewrite(page) == page
