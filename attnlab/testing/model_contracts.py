"""Promises of every model of language, each a function that returns None, or a `Broken` one.

    >>> import numpy as np
    >>> from attnlab import testing
    >>> def counts(tokens):  # of a model that predicts what it has seen most
    ...     return np.cumsum(np.eye(5)[tokens], axis=1)
    >>> testing.MODEL_CONTRACTS["past"](testing.as_model(counts, vocab_size=5), 0)

All take a `Model` and the seed of its tokens. Numbers are equal as `Model.equality` says it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.runs.errors import Invalid, one_line
from attnlab.testing.comparing import Broken, Found, Inapplicable, find_wrong, listing
from attnlab.testing.dependence import draw_tables
from attnlab.testing.frameworks import call
from attnlab.testing.model import ROWS, Model, check_logits, draw_source

__all__ = ["MODEL_CONTRACTS"]

MODEL_CONTRACTS: dict[str, Callable[..., Broken | None]] = {}
contract = listing(MODEL_CONTRACTS, lambda model: model)


@contract
def past(model: Model, seed: int) -> Found:
    """No logit moves with later tokens: at every cut of all lengths, random, extreme, repeated."""
    for length in model.lengths[1:]:
        for start in range(1, length, ROWS):
            # [ROWS] cuts, the last ones with some again, so that all calls have one shape
            cuts = np.resize(np.arange(start, min(start + ROWS, length)), ROWS)
            base, other = _draw_pairs(model, length, seed, kinds=(cuts + length) % 3)
            is_past = np.arange(length) < cuts[:, None]  # [ROWS, T]
            changed = np.where(is_past, base, other)
            moved = np.abs(model(changed) - model(base)) > model.floor  # [ROWS, T, V]
            for row in np.flatnonzero((moved & is_past[..., None]).any((1, 2))):
                yield _find_cause(model, base[row], changed[row], cuts[row])


def _draw_pairs(model: Model, length: int, seed: int, kinds: np.ndarray) -> tuple[Any, Any]:
    """Tokens [ROWS, length], and what they are changed to: random, extreme, or one token again."""
    random, last = model.draw(length, seed), model.vocab_size - 1
    one = np.broadcast_to(random[:, :1], random.shape)
    extreme = np.broadcast_to(np.where(np.arange(length) % 2, last, 0), random.shape)
    others = [model.draw(length, seed + 1), extreme, (one + 1) % (last + 1)]
    return np.choose(kinds[:, None], [random, random, one]), np.choose(kinds[:, None], others)


def _find_cause(model: Model, base: Any, changed: Any, cut: int) -> Broken | None:
    """The one token that moves the past, if one does; None where the other examples moved it."""
    whole = np.tile(base, (ROWS, 1))
    before = model(whole)[0]  # [T, V]

    def find_move(other: np.ndarray) -> Broken | None:
        beside = np.concatenate([other[None], whole[1:]])
        after = model(beside)[0]
        apart = np.abs(after - before)[: np.argmax(other != base)]  # before the first change
        apart = np.where(apart > model.floor, apart, 0)
        if not apart.any():
            return None
        return _show_move(model, base, other, before, after, apart)

    found = find_move(changed)
    for j in reversed(range(cut, len(base))) if found else ():
        single = find_move(np.where(np.arange(len(base)) == j, changed, base))
        if single is not None:
            return single
    return found


def _show_move(model: Model, base: Any, other: Any, before: Any, after: Any, apart: Any) -> Broken:
    i, v = np.unravel_index(np.argmax(apart), apart.shape)
    first, *more = np.flatnonzero(base != other).tolist()
    others = f", and {len(more)} later ones were others" if more else ""
    return Broken(
        f"logits[0, {i}, {v}] is {after[i, v]:.6g}, not {before[i, v]:.6g}, where token {first} of"
        f" {len(base)} was {other[first]}, not {base[first]}{others}",
        f"from attnlab.testing import as_model; run = {model.code}; x = [{base.tolist()}];"
        f" y = [{other.tolist()}]; print(run(y)[0, {i}, {v}], run(x)[0, {i}, {v}])",
    )


def _compare(where: str, got: Any, wanted: Any, tolerance: Any) -> Broken | None:
    """Of logits [B, T, V] the first that is further off."""
    return find_wrong(np.abs(got - wanted) > tolerance, "logits", got, wanted, f" {where}")


@contract
def dependence(model: Model, seed: int) -> Found:
    """With other tables of tokens too, as one of zeros hides a leak, no past logit moves."""
    length = min(17, model.length)
    source = draw_source(model.keywords, model.vocab_size, ROWS)
    tokens = model.draw(length, seed)
    function = draw_tables(model.function, model.framework, tokens, **source)
    other = dataclasses.replace(model, function=function, length=length)
    if broken := past(other, seed):
        yield Broken(f"{broken}, and each table of tokens was drawn anew")


@contract
def prefix(model: Model, seed: int) -> Found:
    """A prefix alone has the logits that it has in the whole, at every length."""
    longest = model.lengths[-1]
    tokens = model.draw(longest, seed)
    whole = model(tokens)
    for length in model.lengths[:-1]:
        what = f"of {length} tokens alone, where they begin {longest}"
        alone = model(tokens[:, :length])
        yield _compare(what, alone, whole[:, :length], model.tolerance)


@contract
def padding(model: Model, seed: int) -> Found:
    """Padding, in front or behind, and whatever it holds, changes no logit of the other tokens."""
    if not model.mask:
        raise Inapplicable("it takes no mask= or attention_mask= of what is no padding [B, T]")
    longest = min(20, model.length)
    tokens = model.draw(longest, seed)
    widths = 1 + np.arange(ROWS)[:, None] % (longest - 1)  # of padding, another for each example
    alone = model(tokens, **{model.mask: np.ones(tokens.shape, bool)})
    for side in ("behind", "in front"):
        is_ours = np.arange(longest) < longest - widths
        if side == "in front":
            is_ours = is_ours[:, ::-1]
        first = [np.argmax(row) for row in is_ours]
        whole = np.stack([np.roll(row, n) for row, n in zip(tokens, first, strict=True)])
        wanted = np.stack([np.roll(row, n, 0) for row, n in zip(alone, first, strict=True)])
        is_seen = is_ours[..., None]
        last = model.vocab_size - 1
        zeros = model(np.where(is_ours, whole, 0), **{model.mask: is_ours}) * is_seen
        lasts = model(np.where(is_ours, whole, last), **{model.mask: is_ours}) * is_seen
        what = f"with padding {side}, by position"
        yield _compare(what, zeros, wanted * is_seen, model.tolerance)
        what = f"with tokens {last} and not 0 as padding {side}"
        yield _compare(what, lasts, zeros, model.floor)


@contract
def batch_mates(model: Model, seed: int) -> Found:
    """The logits of an example are the same beside any others, and alone."""
    length = min(33, model.length)
    tokens, others = model.draw(length, seed), model.draw(length, seed + 1)
    for row in (0, ROWS - 1):
        is_row = np.arange(ROWS)[:, None] == row
        wanted = model(tokens)[row]
        beside = model(np.where(is_row, tokens, others))[row]
        what = f"of example {row} of {ROWS}, where the others are others"
        yield _compare(what, beside, wanted, model.floor)
        alone = model(tokens[row : row + 1])[0]
        yield _compare(f"of example {row} of {ROWS} alone", alone, wanted, model.tolerance)


@contract
def determinism(model: Model, seed: int) -> Found:
    """Two calls with the same tokens give the same logits, but for rounding."""
    if model.is_random:
        yield Broken(
            f"two calls with the same tokens differ by {model.measured[0]:.3g}; give it at rest"
            " (deterministic=True, eval()), or with one key for all calls and contracts=past"
        )


@contract
def packing(model: Model, seed: int) -> Found:
    """Two documents in a row, told apart by segment_ids, have the logits that each has alone."""
    if "segment_ids" not in model.keywords:
        raise Inapplicable("it takes no segment_ids= [B, T]")
    length = min(24, model.length)
    if length < 2:
        raise Inapplicable("two documents need two tokens; give a greater length=")
    cut = length - length * 11 // 24 if length > 2 else 1
    both, other = model.draw(length, seed), model.draw(length, seed + 2)
    ids = np.tile([1] * cut + [2] * (length - cut), (ROWS, 1)).astype(np.int32)
    packed = model(both, segment_ids=ids)
    for name, own in (("first", np.arange(cut)), ("second", np.arange(cut, length))):
        what = f"of the {name} of two packed documents, of {cut} and {length - cut} tokens"
        alone = model(both[:, own], segment_ids=np.ones((ROWS, len(own)), np.int32))
        yield _compare(what, packed[:, own], alone, model.tolerance)
        mixed = np.where(np.isin(np.arange(length), own), both, other)
        moved = model(mixed, segment_ids=ids)[:, own]
        yield _compare(f"{what}, beside another", moved, packed[:, own], model.floor)


@contract
def source(model: Model, seed: int) -> Found:
    """The source of an example moves no other example, nor does the source's own padding."""
    if "source" not in model.keywords:
        raise Inapplicable("it takes no source= [B, S]")
    length = min(11, model.length)
    tokens, own = model.draw(length, seed), model.draw(length, seed + 1)
    alone = model(tokens, source=own)
    mixed = np.concatenate([model.draw(length, seed + 2)[:-1], own[-1:]])
    what = "of the last example, where the others have other sources"
    yield _compare(what, model(tokens, source=mixed)[-1], alone[-1], model.floor)
    filled = min(5, model.length - length)
    if "source_mask" not in model.keywords or not filled:
        return
    is_ours = np.broadcast_to(np.arange(length + filled) < length, (ROWS, length + filled))
    for filler in (0, model.vocab_size - 1):
        padded = np.pad(own, [(0, 0), (0, filled)], constant_values=filler)
        what = f"with {filled} tokens {filler} as padding of the source"
        got = model(tokens, source=padded, source_mask=is_ours)
        yield _compare(what, got, alone, model.tolerance)


@contract
def cache(model: Model, seed: int) -> Found:
    """Decoded by token, in random pieces, after a prefill, and past its end: the same logits."""
    if model.decode is None or model.initial is None:
        raise Inapplicable("it has no decode= and initial=")
    if model.length < 3:
        raise Inapplicable("pieces need three tokens; give a greater length=")
    length = min(37, model.length - 1)
    tokens = model.draw(length + 1, seed)[:2]
    whole, places = model(tokens), np.arange(1, length)
    size = min(3, len(places))
    cuts = np.sort(np.random.default_rng(seed).choice(places, size, replace=False))
    pieces = {
        "token by token": range(1, length),
        f"in pieces that begin at {[0, *cuts.tolist()]}": cuts,
        f"after a prefill of {length // 2}": range(length // 2, length),
    }
    for how, starts in pieces.items():
        state, parts = model.initial(2, length), []
        try:
            for piece in np.split(tokens[:, :length], list(starts), axis=1):
                logits, state = _decode(model, state, piece)
                parts.append(logits)
        except _Raised:
            if how == "token by token":
                raise
            continue  # it takes one token at a time, and says so
        full, got = state, np.concatenate(parts, 1)
        yield _compare(f"decoded {how}", got, whole[:, :-1], model.tolerance)
    try:
        logits, _ = _decode(model, full, tokens[:, length:])
    except Invalid:  # it refuses what its cache cannot hold
        return
    what = f"decoded past the end of a cache for {length} tokens (refuse it, or keep a window)"
    yield _compare(what, logits, whole[:, length:], model.tolerance)


class _Raised(Invalid):
    """A user's code raised, so that there are no logits."""


def _decode(model: Model, state: Any, tokens: np.ndarray) -> tuple[np.ndarray, Any]:
    assert model.decode is not None
    try:
        logits, state = call(model.decode, model.framework, state, tokens)
    except Exception as error:  # whatever a user's code raises is its answer
        raise _Raised(f"decode(cache, tokens {tokens.shape}) raised {one_line(error)}") from None
    return check_logits(model, logits, tokens.shape), state
