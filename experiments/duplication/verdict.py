"""What the rows say of the paper's table: which of its statements hold, and which setting does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from experiments.duplication.attention import EXACT, Hashing, rounds_of
from experiments.duplication.cells import Cells, own, written

__all__ = ["ATTEMPT", "Claim", "Paper", "claims", "explained", "nearest", "verdict"]

Paper = Mapping[str, Mapping[str, float]]  # percent, by training and evaluation
ATTEMPT = 1.4  # percent: full → LSH-8 in the reproducibility challenge of 2020
CHANCE = 3.0  # times 1 / symbols: below that a model knows nothing
HASHED = ("LSH-4", "LSH-2", "LSH-1")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper's table, whether it holds here, and the numbers."""

    words: str
    holds: bool
    numbers: str


def claims(cells: Cells, num_symbols: int) -> list[Claim]:
    """The statements that the rows can judge."""
    mean = cells.mean
    found = []
    rows = [name for name in ("full", *HASHED) if mean(name, "LSH-8") is not None]
    if len(rows) == 4:
        own = {name: mean(name, "full" if name == "full" else "LSH-8") or 0.0 for name in rows}
        found.append(
            Claim(
                "every model learns the task (≥ 99 % with full attention or 8 rounds)",
                min(own.values()) >= 99,
                _said(own),
            )
        )
        lost = {name: (mean(name, "LSH-8") or 0) - (mean(name, "LSH-1") or 0) for name in rows}
        steps = [(mean(n, a) or 0) - (mean(n, b) or 0) for n in rows for a, b in _falling(cells)]
        found.append(
            Claim(
                "fewer rounds at evaluation are worse, in every row",
                min(steps) > -0.5 and min(lost.values()) > 1,
                "from 8 rounds to 1: " + _said({name: -x for name, x in lost.items()}),
            )
        )
    one = {name: mean(name, "LSH-1") for name in ("full", *HASHED)}
    known = {name: x for name, x in one.items() if x is not None}
    if known.keys() >= {"full", "LSH-4"}:
        found.append(
            Claim(
                "training with 4 rounds beats training with full attention where 1 round is left",
                known["LSH-4"] > known["full"],
                _said({name: known[name] for name in ("LSH-4", "full")}),
            )
        )
    if known.keys() >= {*HASHED}:
        found.append(
            Claim(
                "the more rounds in training, the better with 1 round (4 > 2 > 1)",
                known["LSH-4"] > known["LSH-2"] > known["LSH-1"],
                _said({name: known[name] for name in HASHED}),
            )
        )
    full = {
        name: x
        for name in HASHED
        if (x := mean(name, "full")) is not None and cells.learned(name, cells.base)
    }
    if full:
        found.append(
            Claim(
                "full attention, with unit keys and no look at itself, fails a model that was "
                "trained to hash (0.8 %)",
                max(full.values()) < CHANCE * 100 / num_symbols,
                _said(full),
            )
        )
    return found


def _falling(cells: Cells) -> list[tuple[str, str]]:
    columns = [name for name in cells.evaluated() if rounds_of(name)]
    return list(zip(columns, columns[1:], strict=False))


def _said(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {round(x, 1) + 0.0:.1f}" for name, x in numbers.items())


def verdict(found: list[Claim]) -> str:
    """All of it in a sentence or two."""
    if not found:
        return "No statement of the paper's table can be judged yet."
    fails = [claim for claim in found if not claim.holds]
    if not fails:
        return f"Reproduced: all {len(found)} statements of the paper's table hold."
    words = "; ".join(f"{claim.words}: {claim.numbers}" for claim in fails)
    holds = len(found) - len(fails)
    return (
        f"{'Reproduced in part' if holds else 'Not reproduced'}: {holds} of {len(found)} statements"
        f" of the paper's table hold. Not reproduced: {words}."
    )


def explained(cells: Cells, num_symbols: int, paper: Paper) -> list[str]:
    """What the rows say of the paper's 0.8 %, the attempt's 1.4 % and the paper's other numbers.

    Models that did not learn the task with the attention of their training are left out.
    """
    return [
        _of_paper(cells, num_symbols),
        _of_attempt(cells, num_symbols),
        _of_pattern(cells, paper),
    ]


def _of_paper(cells: Cells, num_symbols: int) -> str:
    chance = 100 / num_symbols
    lines = []
    for kind, words in EXACT.items():
        found = [
            x
            for name, hashing in cells.trained()
            if rounds_of(name) and cells.learned(name, hashing)
            for x in cells.of(name, kind, hashing)
        ]
        if found:
            failed = sum(x < CHANCE * chance for x in found)
            lines.append((kind, words, failed, len(found), min(found), max(found)))
    if not lines:
        return ""
    blamed = [line for line in lines if line[2] == line[3]]
    ranges = "; ".join(
        f"*{kind}* ({words}) {low:.1f} to {high:.1f}" for kind, words, *_, low, high in lines
    )
    who = ", ".join(f"*{line[0]}*" for line in blamed)
    what = (
        f"Its 0.8 % is chance ({chance:.1f} %), and of all {lines[0][3]} models trained to hash"
        f" {who} attention gives chance"
        if blamed
        else "Its 0.8 % comes from no sense of full attention in every model trained to hash"
    )
    return f"{what}. Accuracies in percent: {ranges}."


def _of_attempt(cells: Cells, num_symbols: int) -> str:
    """Which trainings with attention over all pairs fail with 8 rounds."""
    found = {
        (name, hashing, other): cells.of(name, "LSH-8", hashing, other)
        for name, hashing in cells.trained()
        if not rounds_of(name) and cells.learned(name, hashing)
        for other in dict.fromkeys(cell[3] for cell in cells.by_cell)
    }
    found = {cell: x for cell, x in found.items() if x}
    if not found:
        return ""
    failing = [cell for cell, x in found.items() if sum(x) / len(x) < CHANCE * 100 / num_symbols]

    def said(cell: tuple[str, Hashing, Hashing]) -> str:
        name, hashing, other = cell
        return (
            f"trained with *{name}*, {_scale(hashing)}, evaluated with {other.words()}:"
            f" {written(found[cell])}"
        )

    if failing:
        return (
            f"The attempt's {ATTEMPT} % (full → LSH-8) is reached within {CHANCE:g} times chance by"
            f" {len(failing)} of {len(found)} pairs of training and hashing: "
            + "; ".join(said(cell) for cell in failing)
            + "."
        )
    lowest = min(found, key=lambda cell: sum(found[cell]) / len(found[cell]))
    return (
        f"The attempt's {ATTEMPT} % (full → LSH-8) comes from none of the {len(found)} pairs of"
        f" training and hashing that were run; the lowest is {said(lowest)}."
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
        row = own(name) if rounds_of(name) else "full"
        for other in dict.fromkeys(cell[3] for cell in cells.by_cell):
            known = {c: cells.mean(name, c, hashing, other) for c in columns if c in paper[row]}
            gaps = [abs(x - paper[row][c]) for c, x in known.items() if x is not None]
            if gaps and len(gaps) == len(known):
                gap = sum(gaps) / len(gaps)
                found.setdefault(row, []).append((gap, name, hashing, other))
    return {row: sorted(some, key=lambda one: one[0]) for row, some in found.items()}
