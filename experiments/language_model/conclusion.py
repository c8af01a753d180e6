"""The answer in words, computed from the rows.

At a length an LSH model is as good as exact attention where its bits per byte, over the seeds that
both were trained with, are on average at most `equal_bits` more, and faster where its step takes at
most `FASTER` of exact attention's time. Only the models lsh-R decide: in a pattern such as
window-128+lsh-4 other layers may do the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnlab.attentions import Model
from experiments.language_model.models import is_lsh, rounds_of
from experiments.language_model.rows import Row
from experiments.language_model.settings import Settings
from experiments.language_model.summary import Point, costs, points

__all__ = ["FASTER", "answer"]

FASTER = 0.95  # of exact attention's time: what is nearer is noise

_Points = Mapping[str, Point]  # by model


def answer(rows: Sequence[Row], settings: Settings) -> str:
    """From which length LSH is faster at equal bits per byte, or that it is not."""
    trained: dict[int, dict[str, Point]] = {}
    for point in points(rows).values():
        trained.setdefault(point.length, {})[point.model] = point
    at = {length: found for length, found in trained.items() if _decisive(found)}
    said = [_by_quality(at, settings.equal_bits) if at else _unknown(settings)]
    said += [_without_exact(trained), _of_window(at, settings), _of_sharing(at)]
    said += [_by_time(rows)]
    return " ".join(filter(None, said))


def _decisive(found: _Points) -> list[Point]:
    """The LSH models that can be compared with exact attention, in time and bits."""
    exact = found.get("exact")
    if exact is None or exact.per_token is None:
        return []
    return [
        point
        for point in found.values()
        if point.is_lsh and point.per_token is not None and point.bits.keys() & exact.bits.keys()
    ]


def _unknown(settings: Settings) -> str:
    """Why there is no answer."""
    compared = set(settings.lengths) & set(settings.cost_lengths)
    plain = [model for model in settings.models if is_lsh(model)]
    if "exact" in settings.models and plain and compared and {"train", "cost"} <= {*settings.parts}:
        return (
            "Is LSH worth it? Not known yet: exact attention and an LSH model must both be trained"
            " and timed at one length."
        )
    return (
        "Is LSH worth it? This run does not ask: that needs --parts with train and cost, --models"
        " with exact and one of lsh-R, and a length in both --lengths and --cost_lengths."
    )


def _by_quality(at: Mapping[int, _Points], margin: float) -> str:
    lengths = list(at)
    best = {n: _fastest_equal(at[n], margin) for n in lengths}
    good = [n for n in lengths if best[n] is not None]
    equal = f"faster at equal bits per byte (at most {margin:g} more)"
    longest = lengths[-1]
    tail = [n for n in lengths if all(best[m] is not None for m in lengths if m >= n)]
    if tail:
        where = f"From {tail[0]:,} tokens on" if len(tail) > 1 else f"At {tail[0]:,} tokens"
        found, exact = best[tail[0]], at[tail[0]]["exact"]
        assert found is not None
        words = (
            f"Is LSH worth it? {where} it is {equal}: there a step of {found.model} takes"
            f" {_ratio(found, exact)} of exact attention's time, {_bits(found, exact)}."
        )
        if good[0] < tail[0]:
            words += f" It also is at {_listed(n for n in good if n < tail[0])}, not in between."
        elif len(lengths) == 1:
            words += " No other length was compared."
        return words + _seeds(found, exact, margin)
    exact = at[longest]["exact"]
    hashing = _decisive(at[longest])
    nearest = min(hashing, key=lambda point: point.more_than(exact))
    fastest = min(hashing, key=lambda point: point.per_token or 0)
    if good:
        words = f"Is LSH worth it? It is {equal} at {_listed(good)} tokens, but not at {longest:,}"
    else:
        words = f"Is LSH worth it? Not up to {longest:,}"
    words += (
        " tokens, the longest that were trained and timed, where no number of rounds is"
        f"{'' if good else ' ' + equal}. The best there, {nearest.model},"
        f" takes {_ratio(nearest, exact)} of exact attention's time, {_bits(nearest, exact)}"
    )
    if fastest is not nearest:
        words += (
            f"; the fastest, {fastest.model}, {_ratio(fastest, exact)} of the time,"
            f" {_bits(fastest, exact)}"
        )
    return words + "." + _seeds(nearest, exact, margin)


def _fastest_equal(found: _Points, margin: float) -> Point | None:
    """The fastest LSH model that is as good as exact attention, where it is faster."""
    exact = found["exact"]
    equal = [
        point
        for point in _decisive(found)
        if point.more_than(exact) <= margin + 1e-9  # rounded
        and (point.time_of(exact) or 1) <= FASTER
    ]
    return min(equal, key=lambda point: point.per_token or 0, default=None)


def _listed(lengths: Iterable[int]) -> str:
    words = [f"{n:,}" for n in lengths]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _ratio(point: Point, exact: Point) -> str:
    return f"{point.time_of(exact):.2f}"


def _bits(point: Point, exact: Point) -> str:
    point, exact = point.with_seeds_of(exact), exact.with_seeds_of(point)
    return f"at {point.written()} against {exact.written()} bits per byte"


def _seeds(one: Point, exact: Point, margin: float) -> str:
    """What is known of the spread over the seeds that were compared."""
    one, exact = one.with_seeds_of(exact), exact.with_seeds_of(one)
    if len(one.bits) == 1:
        return " (One seed of both: no spread is known.)"
    said = f" ({len(one.bits)} seeds were compared"
    if max(one.half_width, exact.half_width) > margin:
        said += f"; a mean may be off by more than the {margin:g} that count as equal"
    return said + ".)"


def _without_exact(trained: Mapping[int, _Points]) -> str:
    """Lengths at which LSH was trained and timed, and why exact attention is not beside it."""
    lengths: dict[str, list[int]] = {}
    for n, found in trained.items():
        hashing = [point for point in found.values() if point.is_lsh and point.per_token]
        if not hashing or _decisive(found):
            continue
        if "exact" not in found:
            why = "was not trained"
        elif found["exact"].per_token is None:
            why = "was not timed"
        else:
            why = "was trained with other seeds"
        lengths.setdefault(why, []).append(n)
    return " ".join(
        f"At {_listed(some)} tokens LSH was trained and timed, exact attention {why}."
        for why, some in lengths.items()
    )


def _of_window(at: Mapping[int, _Points], settings: Settings) -> str:
    """What a window, which needs no hashing, reaches at the longest length."""
    name = next((x for x in settings.models if Model.parse(x).form == "window"), "")
    longest = max((n for n in at if name in at[n] and at[n][name].per_token), default=None)
    if longest is None:
        return ""
    found = at[longest]
    window, exact = found[name], found["exact"]
    compared = [p for p in found.values() if p.is_lsh and p.bits.keys() & window.bits.keys()]
    better = [p for p in compared if p.more_than(window) < 0]
    words = (
        f"At {longest:,} tokens {name} takes {_ratio(window, exact)} of exact attention's time, at"
        f" {window.written()} bits"
    )
    if not better:
        return words + (", and no LSH model has fewer." if compared else ".")
    names = ", ".join(p.model for p in better)
    return f"{words}; fewer {'has' if len(better) == 1 else 'have'} {names}."


def _of_sharing(at: Mapping[int, _Points]) -> str:
    """What LSH's shared queries and keys reach without hashing, at the longest length."""
    longest = max((n for n in at if "shared" in at[n]), default=None)
    if longest is None:
        return ""
    return (
        f"Exact attention whose queries are its keys, as LSH has them, reaches"
        f" {at[longest]['shared'].written()} bits at {longest:,} tokens: the bits that an lsh-R"
        " model has above this are the cost of hashing."
    )


def _by_time(rows: Sequence[Row]) -> str:
    """From which length on a step is faster, whatever it learns."""
    measured = {(c.length, c.model): c for c in costs(rows) if c.samples}
    exact = {n: cost for (n, model), cost in measured.items() if model == "exact"}
    said = []
    for model in dict.fromkeys(model for _, model in measured):
        if rounds_of(model) is None:
            continue
        lengths = sorted(n for n in exact if (n, model) in measured)
        first = None
        for n in reversed(lengths):
            if (measured[n, model].time_of(exact[n]) or 1) > FASTER:
                break
            first = n
        if lengths:
            said.append(
                f"{model} " + (f"from {first:,}" if first else f"not up to {lengths[-1]:,}")
            )
    if not said:
        return ""
    return f"By time alone a step is faster than exact attention's: {', '.join(said)} tokens."
