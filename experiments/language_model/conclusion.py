"""The answer in words, computed from the rows."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.language_model.models import rounds_of
from experiments.language_model.rows import Row
from experiments.language_model.settings import Settings
from experiments.language_model.summary import Point, costs, points

__all__ = ["answer"]


def answer(rows: Sequence[Row], settings: Settings) -> str:
    """From which length LSH is faster at equal bits per byte, or that it is not."""
    at: dict[int, dict[str, Point]] = {}
    for point in points(rows).values():
        if point.per_token is not None:
            at.setdefault(point.length, {})[point.model] = point
    comparable = {
        length: found
        for length, found in at.items()
        if "exact" in found and any(point.hashes for point in found.values())
    }
    said = [_by_quality(comparable, settings.equal_bits)] if comparable else [_NOT_YET]
    said += [_of_window(comparable, settings), _of_sharing(comparable)]
    said += [_by_time(rows, settings)]
    return " ".join(filter(None, said))


_NOT_YET = (
    "Is LSH worth it? Not known yet: exact attention and an LSH model must both be trained and"
    " timed at one length."
)


def _by_quality(at: dict[int, dict[str, Point]], margin: float) -> str:
    lengths = list(at)
    best = {n: _fastest_equal(at[n], margin) for n in lengths}
    from_length = None
    for n in reversed(lengths):
        if best[n] is None:
            break
        from_length = n
    equal = f"equal bits per byte (at most {margin:g} more)"
    if from_length is not None:
        found, exact = best[from_length], at[from_length]["exact"]
        assert found is not None
        return (
            f"Is LSH worth it? From {from_length:,} tokens on it is faster at {equal}: there a step"
            f" of {found.model} takes {_ratio(found, exact)} of exact attention's time,"
            f" {_bits(found, exact)}.{_seeds(found, exact)}"
        )
    longest = lengths[-1]
    exact = at[longest]["exact"]
    hashing = [point for point in at[longest].values() if point.hashes]
    nearest = min(hashing, key=lambda point: point.mean)
    fastest = min(hashing, key=lambda point: point.per_token or 0)
    words = (
        f"Is LSH worth it? Not up to {longest:,} tokens, the longest that were trained: no number"
        f" of rounds is faster than exact attention at {equal}. The best there, {nearest.model},"
        f" takes {_ratio(nearest, exact)} of its time, {_bits(nearest, exact)}"
    )
    if fastest is not nearest:
        words += (
            f"; the fastest, {fastest.model}, {_ratio(fastest, exact)} of the time,"
            f" {_bits(fastest, exact)}"
        )
    return words + "." + _seeds(nearest, exact)


def _fastest_equal(found: dict[str, Point], margin: float) -> Point | None:
    """The fastest LSH model that is as good as exact attention, where it is faster."""
    exact = found["exact"]
    equal = [
        point
        for point in found.values()
        if point.hashes
        and point.mean <= exact.mean + margin + 1e-9  # rounded
        and (point.per_token or 0) < (exact.per_token or 0)
    ]
    return min(equal, key=lambda point: point.per_token or 0, default=None)


def _ratio(point: Point, exact: Point) -> str:
    return f"{(point.per_token or 0) / (exact.per_token or 1):.2f}"


def _bits(point: Point, exact: Point) -> str:
    return f"at {point.written()} against {exact.written()} bits per byte"


def _seeds(*found: Point) -> str:
    fewest = min(len(point.bits) for point in found)
    if fewest == 1:
        return " (One seed of a model: no spread is known.)"
    return f" (± is half the range over {fewest} seeds.)"


def _of_window(at: dict[int, dict[str, Point]], settings: Settings) -> str:
    """What a window, which needs no hashing, reaches at the longest length."""
    longest = max((n for n in at if "window" in at[n]), default=None)
    if longest is None:
        return ""
    found = at[longest]
    window, exact = found["window"], found["exact"]
    better = [p for p in found.values() if p.hashes and p.mean < window.mean]
    words = (
        f"At {longest:,} tokens a window of {settings.window} takes {_ratio(window, exact)} of"
        f" exact attention's time, at {window.written()} bits"
    )
    if not better:
        return words + ", and no LSH model has fewer."
    names = ", ".join(p.model for p in better)
    return f"{words}; fewer {'has' if len(better) == 1 else 'have'} {names}."


def _of_sharing(at: dict[int, dict[str, Point]]) -> str:
    """What LSH's shared queries and keys reach without hashing, at the longest length."""
    longest = max((n for n in at if "shared" in at[n]), default=None)
    if longest is None:
        return ""
    return (
        f"Exact attention whose queries are its keys, as LSH has them, reaches"
        f" {at[longest]['shared'].written()} bits at {longest:,} tokens: what LSH models have more,"
        " hashing costs."
    )


def _by_time(rows: Sequence[Row], settings: Settings) -> str:
    """From which length on a step is faster, whatever it learns."""
    measured = {(c.length, c.model): c.per_token for c in costs(rows) if c.per_token is not None}
    lengths = sorted({n for n, model in measured if model == "exact"})
    said = []
    for model in settings.models:
        if rounds_of(model) is None:
            continue
        first = None
        for n in reversed([n for n in lengths if (n, model) in measured]):
            if measured[n, model] >= measured[n, "exact"]:
                break
            first = n
        if any((n, model) in measured for n in lengths):
            said.append(
                f"{model} " + (f"from {first:,}" if first else f"not up to {lengths[-1]:,}")
            )
    if not said:
        return ""
    return f"By time alone a step is faster than exact attention's: {', '.join(said)} tokens."
