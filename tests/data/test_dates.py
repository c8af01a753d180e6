"""Dates are read here by regular expressions, which share nothing with what writes them."""

import datetime
import re

import pytest

from attnlab.data.dates import Dates

MONTHS = {
    name: month
    for names in (
        "january february march april may june july august september october november december",
        "januar februar maerz april mai juni juli august september oktober november dezember",
        "jan feb mar apr may jun jul aug sep oct nov dec",
        "jan feb mae apr mai jun jul aug sep okt nov dez",
    )
    for month, name in enumerate(names.split(), 1)
}
DAY, YEAR, NAME = r"(?P<D>\d\d?)", r"(?P<Y>\d{4}|\d\d)", r"(?P<N>[a-z]+)"
PREFIX = r"(?:(?P<W>[a-z]+), |the )?"
SUFFIX = r"(?P<suffix>st|nd|rd|th)?"
GERMAN_DAYS = "mo di mi do fr sa so".split()
FORMS = [
    rf"{PREFIX}{DAY}(?:{SUFFIX}|\.)[ -](?:of )?{NAME},?[ -]{YEAR}",
    rf"{PREFIX}{NAME} {DAY}{SUFFIX},? {YEAR}",
    rf"(?P<Y>\d{{4}}) {NAME} {DAY}",
    rf"(?P<M>\d\d?)/{DAY}/{YEAR}",
    rf"(?P<Y>\d{{4}})/(?P<M>\d\d)/{DAY}",
    r"(?P<Y>\d{4})(?P<M>\d\d)(?P<D>\d\d)",
    rf"{DAY}\.(?P<M>\d\d?)\.{YEAR}",
]


def read(source: str) -> tuple[datetime.date, list[set[int]]]:
    """Returns the date, and for each character of its ISO form the source characters it is of."""
    matches = [match for form in FORMS if (match := re.fullmatch(form, source.lower()))]
    assert len(matches) == 1, source
    (match,) = matches
    groups = match.groupdict()
    year = int(groups["Y"])
    if len(groups["Y"]) == 2:
        year += 2000 if year < 69 else 1900
    month = MONTHS[groups["N"]] if groups.get("N") else int(groups["M"])
    date = datetime.date(year, month, int(groups["D"]))

    years = [{i} for i in range(*match.span("Y"))]
    links = years if len(years) == 4 else [set.union(*years)] * 2 + years
    for group in ("N" if groups.get("N") else "M", "D"):
        places = list(range(*match.span(group)))
        if group == "N":
            columns = [set(places)] * 2
        else:
            columns = [set()] * (2 - len(places)) + [{i} for i in places]
        links = [*links, set(), *columns]
    weekday = groups.get("W")
    assert not weekday or weekday[:2] in (f"{date:%a}".lower()[:2], GERMAN_DAYS[date.weekday()])
    return date, links


@pytest.mark.parametrize("split", ["train", "test"])
def test_dates_and_their_alignments_are_right(split):
    dates = Dates(split, seed=5)
    for i in range(2000):
        example = dates[i]
        date, links = read(example["source"])
        assert example["target"] == date.isoformat()
        assert [set(positions) for positions in dates.alignment(i)] == links, example


def test_dates_are_written_in_many_ways():
    sources = [Dates()[i]["source"] for i in range(3000)]
    shapes = {re.sub("[A-Za-z]+", "a", re.sub(r"\d", "0", source)) for source in sources}
    assert len(shapes) > 25
    assert max(map(len, sources)) <= 30
    assert all(source.isascii() for source in sources)
    assert {source.isupper() for source in sources} == {True, False}
