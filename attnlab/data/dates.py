"""Dates written in many ways → ISO: a translation whose true alignments are known.

    3rd of March 2019 → 2019-03-03      Mo, 5. Oktober 1998 → 1998-10-05
    02/28/1933        → 1933-02-28      FEB 5 98            → 1998-02-05

A date is written in one way only where it can be read in one way only: with slashes it is
month/day/year or year/month/day, with dots day.month.year, and a year of two digits comes last and
is one of 1969 to 2068, as in POSIX. All is ASCII, so that characters are bytes: with
`tokenizers.Bytes`, source token j is `source[j]` and target token i is `target[i]`.
"""

import dataclasses
import datetime
import functools
import hashlib
import random
import string

from attnlab.data.tasks import ENDLESS

__all__ = ["Dates"]

Links = dict[int, tuple[int, ...]]  # of positions of the target, those of the source

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
SPLITS = ("train", "validation", "test")

MONTHS = (
    "January February March April May June July August September October November December",
    "Januar Februar Maerz April Mai Juni Juli August September Oktober November Dezember",
)
DAYS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
)
ENGLISH, GERMAN = 0, 1

# Fields: d day, D day of two digits, o ordinal day, m month, M month of two digits, N its name,
# n short, y year of two digits, Y of four, W name of the day, w short. Capitals say "in full".
ENGLISH_FORMS = (
    "{N} {d}, {Y}",
    "{N} {o}, {Y}",
    "{d} {N} {Y}",
    "{o} of {N} {Y}",
    "the {o} of {N}, {Y}",
    "{d} {n} {Y}",
    "{n} {d} {y}",
    "{D} {n} {y}",
    "{D}-{n}-{Y}",
    "{w}, {d} {n} {Y}",
    "{W}, {N} {d}, {Y}",
    "{Y} {n} {D}",
    "{M}/{D}/{Y}",
    "{m}/{d}/{Y}",
    "{Y}/{M}/{D}",
    "{Y}{M}{D}",
)
GERMAN_FORMS = (
    "{d}. {N} {Y}",
    "{w}, {d}. {N} {Y}",
    "{W}, {d}. {n} {Y}",
    "{D}.{M}.{Y}",
    "{d}.{m}.{Y}",
    "{d}.{m}.{y}",
)
FORMS = (*((ENGLISH, form) for form in ENGLISH_FORMS), *((GERMAN, form) for form in GERMAN_FORMS))


@functools.cache
def dates_of(split: str) -> tuple[datetime.date, ...]:
    """The dates of a split: 8 of 10 are for training, by a hash of the date alone."""
    dates = []
    for ordinal in range(FIRST.toordinal(), LAST.toordinal() + 1):
        date = datetime.date.fromordinal(ordinal)
        tenth = hashlib.sha256(date.isoformat().encode()).digest()[0] % 10
        if {0: "test", 1: "validation"}.get(tenth, "train") == split:
            dates.append(date)
    return tuple(dates)


@dataclasses.dataclass(frozen=True)
class Dates:
    """Examples {"source", "target"}; each depends only on (split, seed, index).

    No date of one split is in another, so what is learnt is how dates are written.

    Attributes:
      split: name of the split: "train", "validation" or "test".
      seed: seed of the order of dates and forms.
      size: number of examples.

    Example:
      >>> Dates()[0]
      {'source': 'mon, 5 jul 2038', 'target': '2038-07-05'}
    """

    split: str = "train"
    seed: int = 0
    size: int = ENDLESS

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}; got {self.split!r}")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, str]:
        source, target, _ = self._written(index)
        return {"source": source, "target": target}

    def alignment(self, index: int) -> tuple[tuple[int, ...], ...]:
        """For each character of the target, the positions of the source it stems from.

        One position is a sure link; several are possible ones (the letters of a month's name, the
        two digits that tell a century); none is for what stems from nothing: the hyphens, and the
        0 of `03` where the source has `3`.
        """
        _, target, links = self._written(index)
        return tuple(links.get(i, ()) for i in range(len(target)))

    def _written(self, index: int) -> tuple[str, str, Links]:
        """Returns source, target, and for positions of the target the positions of the source."""
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}")
        rng = random.Random(f"dates {self.split} {self.seed} {index}")
        date = rng.choice(dates_of(self.split))
        language, form = rng.choice(FORMS)
        if "{y}" in form and not 1969 <= date.year <= 2068:
            form = form.replace("{y}", "{Y}")
        source, links = "", Links()
        for literal, kind, _, _ in string.Formatter().parse(form):
            source += literal
            if kind:
                text, field_links = field(kind, date, language)
                for target_position, offsets in field_links.items():
                    links[target_position] = tuple(len(source) + offset for offset in offsets)
                source += text
        return rng.choice((str, str, str.lower, str.upper))(source), date.isoformat(), links


def field(kind: str, date: datetime.date, language: int) -> tuple[str, Links]:
    """The text of a field and, for positions in `YYYY-MM-DD`, those of the text they stem from."""
    match kind:
        case "Y":
            return f"{date.year}", {i: (i,) for i in range(4)}
        case "y":
            return f"{date.year % 100:02}", {0: (0, 1), 1: (0, 1), 2: (0,), 3: (1,)}
        case "M" | "D":
            number, first = (date.month, 5) if kind == "M" else (date.day, 8)
            return f"{number:02}", {first: (0,), first + 1: (1,)}
        case "m" | "d" | "o":
            number, last = (date.month, 6) if kind == "m" else (date.day, 9)
            digits = str(number)
            links: Links = {last - i: (len(digits) - 1 - i,) for i in range(len(digits))}
            return digits + (ordinal_suffix(number) if kind == "o" else ""), links
        case "N" | "n":
            name = MONTHS[language].split()[date.month - 1]
            name = name[:3] if kind == "n" else name
            return name, dict.fromkeys((5, 6), tuple(range(len(name))))
        case "W" | "w":
            name = DAYS[language].split()[date.weekday()]
            return name[: (3, 2)[language]] if kind == "w" else name, {}
    raise ValueError(f"no field {kind!r}")


def ordinal_suffix(number: int) -> str:
    """The letters of 1st, 2nd, 3rd, 4th, 11th.

    >>> " ".join(f"{n}{ordinal_suffix(n)}" for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30))
    '1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 30th'
    """
    return "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
