"""What the rows say of the paper's table: which of its statements hold, and which setting does."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence

from attnlab.runs.intervals import sign
from attnlab.runs.report import grouped
from experiments.duplication.attention import EXACT, Hashing, rounds_of
from experiments.duplication.cells import LEARNED, Cells, own, written

__all__ = ["ATTEMPT", "HASHED", "Claim", "Paper", "claims", "explained", "nearest", "verdict"]

Paper = Mapping[str, Mapping[str, float]]  # percent, by training and evaluation
ATTEMPT = 1.4  # percent: full → lsh-8 in the reproducibility challenge of 2020
CHANCE = 3.0  # times 1 / symbols: below that a model knows nothing
HASHED = ("lsh-4", "lsh-2", "lsh-1")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper's table, and the numbers.

    Attributes:
      words: words of the statement.
      holds: whether it holds here; None where the seeds do not decide it.
      numbers: means that it is about, in words.
    """

    words: str
    holds: bool | None
    numbers: str

    @property
    def answer(self) -> str:
        """The word for it: yes, no or not decided."""
        return "not decided" if self.holds is None else "yes" if self.holds else "no"


def claims(cells: Cells, num_symbols: int) -> list[Claim]:
    """The statements that the rows can judge: all but the first, of models that learned the task.

    The last three are decided where the seeds' 95 % interval says so.
    """
    names = ("shared", *HASHED)
    found = []
    own = _known(
        {name: cells.mean(name, "shared" if name == "shared" else "lsh-8") for name in names}
    )
    if len(own) == len(names):
        found.append(
            Claim(
                "every model learns the task (≥ 95 % with full attention or 8 rounds)",
                min(own.values()) >= 95,
                _said(own),
            )
        )
    learned = [name for name in names if cells.learned(name, cells.base)]
    eight, one = (_known({n: cells.mean(n, x) for n in learned}) for x in ("lsh-8", "lsh-1"))
    if len(eight) == len(one) == len(names):
        lost = {name: eight[name] - one[name] for name in names}
        columns = [column for column in cells.evaluated() if rounds_of(column)]
        falling = [_known({x: cells.mean(name, x) for x in columns}).values() for name in names]
        steps = [x - y for means in falling for x, y in itertools.pairwise(means)]
        found.append(
            Claim(
                "fewer rounds at evaluation are worse, in every row",
                min(steps) > -0.5 and min(lost.values()) > 1,
                "from 8 rounds to 1: " + _said({name: -x for name, x in lost.items()}),
            )
        )
    if one.keys() >= {"shared", "lsh-4"}:
        found.append(
            Claim(
                "training with 4 rounds beats training with full attention where 1 round is left",
                _all([sign(cells.gaps("lsh-4", "shared", "lsh-1"))]),
                _said({name: one[name] for name in ("lsh-4", "shared")}),
            )
        )
    if one.keys() >= {*HASHED}:
        found.append(
            Claim(
                "the more rounds in training, the better with 1 round (4 > 2 > 1)",
                _all([sign(cells.gaps(*pair, "lsh-1")) for pair in itertools.pairwise(HASHED)]),
                _said({name: one[name] for name in HASHED}),
            )
        )
    full = _known({name: cells.mean(name, "shared") for name in HASHED if name in learned})
    chance = _nothing(num_symbols)
    if full and chance is not None:
        found.append(
            Claim(
                "full attention, with unit keys and no look at itself, fails a model that was "
                "trained to hash (0.8 %)",
                _all([sign([chance - x for x in cells.of(name, "shared")]) for name in full]),
                _said(full),
            )
        )
    return found


def _known(means: Mapping[str, float | None]) -> dict[str, float]:
    return {name: x for name, x in means.items() if x is not None}


def _all(signs: Sequence[int]) -> bool | None:
    """Whether all gaps are above 0; None where some may be and none is below."""
    return True if min(signs) > 0 else False if min(signs) < 0 else None


def _nothing(num_symbols: int) -> float | None:
    """Percent below which a model knows nothing; None where that counts as learned."""
    found = CHANCE * 100 / num_symbols
    return found if found < LEARNED else None


def _said(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {round(x, 1) + 0.0:.1f}" for name, x in numbers.items())


def verdict(found: list[Claim]) -> str:
    """All of it in a sentence or two."""
    if not found:
        return "No statement of the paper's table can be judged yet."
    by_answer = grouped(found, lambda claim: claim.answer)
    holds, fails = (len(by_answer.get(x, ())) for x in ("yes", "no"))
    if holds == len(found):
        return f"Reproduced: all {len(found)} statements of the paper's table hold."
    head = "Reproduced in part" if holds else "Not reproduced" if fails else "Not decided"
    said = [f"{head}: {holds} of {len(found)} statements of the paper's table hold."]
    for answer, title in (("no", "Not reproduced"), ("not decided", "Not decided by these seeds")):
        if some := by_answer.get(answer):
            listed = "; ".join(f"{claim.words}: {claim.numbers}" for claim in some)
            said.append(f"{title}: {listed}.")
    return " ".join(said)


def explained(cells: Cells, num_symbols: int, paper: Paper) -> list[str]:
    """What the rows say of the paper's 0.8 %, the attempt's 1.4 % and the paper's other numbers.

    Models that did not learn the task with the attention of their training are left out.
    """
    said = [_of_paper(cells, num_symbols), _of_attempt(cells, num_symbols)]
    return [*said, _of_pattern(cells, paper), _of_the_rest(cells)]


def _of_paper(cells: Cells, num_symbols: int) -> str:
    """In which sense of full attention models that were trained to hash know least."""
    hashed = [(n, h) for n, h in cells.trained() if rounds_of(n) and cells.learned(n, h)]
    found = {kind: [x for n, h in hashed for x in cells.of(n, kind, h)] for kind in EXACT}
    found = {kind: x for kind, x in found.items() if x}
    if not found:
        return ""
    lowest = min(found, key=lambda kind: statistics.fmean(found[kind]))
    every = "; ".join(f"*{kind}* {_range(x)}" for kind, x in found.items())
    return (
        f"The paper's 0.8 % (trained to hash → full) is chance, {100 / num_symbols:.1f} %. Of"
        f" {len(found[lowest])} models trained to hash, the sense of full attention that is nearest"
        f" to it is *{lowest}* ({EXACT[lowest]}): {statistics.fmean(found[lowest]):.1f} % in the"
        f" mean. From worst to best model: {every}."
    )


def _of_attempt(cells: Cells, num_symbols: int) -> str:
    """Which trainings with attention over all pairs fail with 8 rounds."""
    found: dict[str, list[float]] = {}
    chance = _nothing(num_symbols)
    for name, hashing in cells.trained():
        if rounds_of(name) or not cells.learned(name, hashing):
            continue
        known = f"{name}, {_scale(hashing)}* (itself {written(cells.own(name, hashing))})"
        for other in cells.hashings():
            if (mean := cells.mean(name, "lsh-8", hashing, other)) is not None:
                found.setdefault(known, []).append(mean)
    if not found or chance is None:
        return ""
    failing = [known for known, x in found.items() if min(x) < chance]
    every = "; ".join(f"*{known} {_range(x)}" for known, x in found.items())
    blamed = (
        f"is within {CHANCE:g} times chance of what was trained with "
        + " and with ".join(f"*{known}" for known in failing)
        if failing
        else "comes from no setting that was run and learned the task"
    )
    return (
        f"The attempt's {ATTEMPT} % (full → lsh-8) {blamed}. From the worst to the best hashing of"
        f" evaluation, means over seeds, and beside the name the accuracy with the attention of"
        f" training: {every}."
    )


def _range(found: Sequence[float]) -> str:
    return f"{min(found):.1f} to {max(found):.1f}"


def _of_the_rest(cells: Cells) -> str:
    """The models that did not learn the task."""
    failed = [
        f"*{name}, {_scale(hashing)}* ({written(cells.own(name, hashing))} %)"
        for name, hashing in cells.trained()
        if not cells.learned(name, hashing)
    ]
    if not failed:
        return ""
    return (
        f"Left out of what is said of 0.8 % and {ATTEMPT} %, because with the attention of their"
        f" training they know less than {LEARNED:g} % of the symbols: {'; '.join(failed)}."
    )


def _of_pattern(cells: Cells, paper: Paper) -> str:
    """Which setting is nearest to each row of the paper that was trained in several."""
    said = []
    for row, found in nearest(cells, paper).items():
        gap, name, hashing, other = found[0]
        if len(found) > 1:
            how = f"{name}, {hashing.words() if rounds_of(name) else _scale(hashing)}"
            where = "" if other == hashing else f" and evaluated with {other.words()}"
            said.append(f"its row {row} by *{how}*{where} ({gap:.1f} points away)")
    if not said:
        return ""
    return "The numbers nearest to the paper's, in the mean over rounds: " + "; ".join(said) + "."


def _scale(hashing: Hashing) -> str:
    return hashing.words().split(",")[0]


def nearest(cells: Cells, paper: Paper) -> dict[str, list[tuple[float, str, Hashing, Hashing]]]:
    """Per row of the paper, how far each setting's LSH columns are from it, nearest first.

    Returns:
      By the paper's name of a training: (mean |difference| in points, name of the attention here,
      hashing of training, hashing of evaluation).
    """
    found: dict[str, list[tuple[float, str, Hashing, Hashing]]] = {}
    columns = [name for name in cells.evaluated() if rounds_of(name)]
    for name, hashing in cells.trained():
        row = own(name) if rounds_of(name) else "shared"
        for other in cells.hashings():
            known = {c: cells.mean(name, c, hashing, other) for c in columns if c in paper[row]}
            gaps = [abs(x - paper[row][c]) for c, x in known.items() if x is not None]
            if gaps and len(gaps) == len(known):
                gap = sum(gaps) / len(gaps)
                found.setdefault(row, []).append((gap, name, hashing, other))
    return {row: sorted(some, key=lambda one: one[0]) for row, some in found.items()}
