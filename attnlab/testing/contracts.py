"""Promises of every mechanism, each a function that returns None, or a `Broken` one.

    >>> from attnlab import routes, testing
    >>> testing.causal(routes.Window(left=3, right=0))

All take a `Subject`, or what `subject_of` makes one of, and the seed of its arrays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks
from attnlab.ops.routes import LSH
from attnlab.runs.errors import one_line
from attnlab.testing.comparing import (
    Broken,
    Found,
    Inapplicable,
    compare_bits,
    compare_numbers,
    find_wrong,
    listing,
)
from attnlab.testing.judging import make_units, measure_rows, move, rounding
from attnlab.testing.subject import Arrays, Sizes, Subject, keywords_at_rest, subject_of

EXTREMES = (1e4, 1e18, float(np.finfo(np.float32).max))


CONTRACTS: dict[str, Callable[..., Broken | None]] = {}
contract = listing(CONTRACTS, subject_of)


@functools.cache
def context_and_grads(subject: Subject) -> Any:
    """Compiled once for each subject: (arrays, mask, dcontext) -> (context, gradients).

    Where there is no gradient, as of a callback, it has none.
    """

    def run(arrays: Arrays, mask: Any, dcontext: jax.Array) -> tuple[jax.Array, Arrays]:
        if _why_no_gradient(subject):
            return subject.apply(arrays, mask), {}
        context, pull_back = jax.vjp(lambda arrays: subject.apply(arrays, mask), arrays)
        return context, pull_back(dcontext)[0]

    return jax.jit(run)


@functools.cache
def _why_no_gradient(subject: Subject) -> str:
    """What JAX says of a function that it has no rule for; "" = there is a gradient."""

    def context(arrays: Arrays) -> jax.Array:
        return jnp.sum(subject.apply(arrays, subject.mask_of()))

    jax.eval_shape(context, subject.arrays())  # what is wrong without a gradient is raised here
    try:
        jax.eval_shape(jax.grad(context), subject.arrays())
    except (NotImplementedError, ValueError) as error:  # of callbacks, kernels, endless loops
        return one_line(error)
    return ""


def _require_gradient(subject: Subject) -> None:
    if subject.straight_through:
        raise Inapplicable("its gradient is said to be that of another function, straight through")
    if why := _why_no_gradient(subject):
        raise Inapplicable(f"it has no gradient: {why}")


@functools.cache
def _shape(subject: Subject, sizes: Sizes) -> tuple[int, ...]:
    arrays = subject.arrays(sizes=sizes)
    return jax.eval_shape(subject.apply, arrays, subject.mask_of(sizes=sizes)).shape


def dcontext_of(subject: Subject, seed: int = 0, sizes: Sizes | None = None) -> jax.Array:
    """A cotangent of the context."""
    shape = _shape(subject, sizes or subject.sizes())
    return jnp.asarray(np.random.default_rng(seed + 1).normal(size=shape), jnp.float32)


def _run(subject: Subject, arrays: Arrays, mask: Any, dcontext: Any) -> tuple[Any, Any]:
    context, grads = context_and_grads(subject)(arrays, mask, dcontext)
    return np.asarray(context), jax.tree.map(np.asarray, grads)


def _spread(rows: np.ndarray, like: Any) -> np.ndarray:
    """[B, T] with axes of 1 up to the rank of `like`."""
    return rows.reshape(*rows.shape, *(1,) * (np.ndim(like) - rows.ndim))


def _rows(subject: Subject, visible: np.ndarray) -> np.ndarray:
    """[B, T]: all queries, less those whose own array holds what is hidden."""
    sizes = subject.sizes()
    return visible if subject.shares else np.ones((sizes.batch, sizes.queries), bool)


@contract
def shapes(subject: Subject, seed: int) -> Found:
    """The context and gradients are finite, of the dtype and shape of what they belong to."""
    arrays, dcontext = subject.arrays(seed), dcontext_of(subject)
    context, grads = _run(subject, arrays, subject.mask_of(), dcontext)
    sizes = subject.sizes()
    wanted = (sizes.batch, sizes.queries, *context.shape[2:])
    if subject.projects:  # to the states of a layer
        wanted = arrays[subject.queries[0]].shape
    if context.dtype != jnp.float32 or context.shape != wanted:
        yield Broken(f"the context is {context.dtype} {context.shape}, not float32 {wanted}")
    for name, x in {"context": context, **_name_gradients(grads)}.items():
        yield find_wrong(~np.isfinite(x), name, x, 0)
    if subject.projects:  # softmax cancels a bias of keys
        grads = {name: x for name, x in grads.items() if name in subject.batched}
    still = [name for name, x in _name_gradients(grads).items() if not np.abs(x).max() > 1e-3]
    if still:
        yield Broken(f"{', '.join(still)}: has no influence on the context")


def _vdot(x: Any, y: Any) -> jax.Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, x, y))


def _name_gradients(grads: Any) -> dict[str, np.ndarray]:
    flat, _ = jax.tree.flatten_with_path(grads)
    return {f"gradient{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in flat}


@contract
def definition(subject: Subject, seed: int) -> Found:
    """It is what its weights say, all pairs at once in float64; with gradients, at two lengths."""
    if subject.definition is None:
        raise Inapplicable("it has no weights")
    _require_gradient(subject)
    plain = subject.definition
    longer = subject.sizes(batch=1, keys=701, queries=701, num_kv_heads=1)
    for sizes in (subject.sizes(), longer):
        visible = subject.visible_keys() if sizes.batch > 1 else None
        mask = subject.mask_of(causal=subject.causal, visible=visible, sizes=sizes)
        arrays, dcontext = subject.arrays(seed, sizes=sizes), dcontext_of(subject, seed, sizes)
        got = _run(subject, arrays, mask, dcontext)
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (arrays, dcontext))
            wanted = jax.jit(lambda a, d, m=mask: _vjp(lambda a: plain(a, m), a, d))(*wide)
        where = f" at {sizes.keys} keys"
        yield compare_numbers("context, gradients", got, wanted, where, tolerance=1e-4)
    yield _short_range(getattr(getattr(subject.layer, "route", None), "mask", None))


def _short_range(mask: Any) -> Broken | None:
    """A mask whose `key_range` leaves out a key that it shows; None of what is no mask."""
    if not isinstance(mask, masks.Mask):
        return None
    shown: Any = np.asarray(mask.as_array(37, 41))
    for i, row in enumerate(shown.reshape(-1, *shown.shape[-2:]).any(0)):
        first, stop = mask.key_range(jnp.arange(i, i + 1), 41)
        left_out = [j for j in np.flatnonzero(row) if not first <= j < stop]
        if left_out:
            return Broken(f"query {i} sees key {left_out[0]}, not in key_range: {first}, {stop}")
    return None


def _vjp(function: Callable[[Any], Any], arrays: Any, dcontext: Any) -> tuple[Any, Any]:
    context, pull_back = jax.vjp(function, arrays)
    return context, pull_back(dcontext.astype(context.dtype))[0]


@contract
def gradient(subject: Subject, seed: int) -> Found:
    """The gradient is the slope: differences of 1e-6 in float64, in three directions."""
    _require_gradient(subject)
    with jax.enable_x64(True):
        arrays = subject.arrays(seed, jnp.float64)
        mask = subject.mask_of(causal=subject.causal)
        dcontext = jnp.asarray(dcontext_of(subject), jnp.float64)

        def loss(arrays: Any) -> jax.Array:
            return jnp.vdot(subject.apply(arrays, mask).astype(jnp.float64), dcontext)

        both = jax.jit(jax.value_and_grad(loss))
        grads = both(arrays)[1]
        for i in range(3):
            rng = np.random.default_rng(seed + i)
            way = jax.tree.map(lambda x, rng=rng: rng.normal(size=x.shape), arrays)
            said = float(_vdot(grads, way))
            slope = _other_slope(lambda x: both(x)[0], arrays, way, said, step=1e-6, tolerance=1e-4)
            if slope is not None:
                yield Broken(f"in direction {i} the gradient says {said:.6g}, not {slope:.6g}")


def _other_slope(
    function: Callable[[Any], Any],
    arrays: Any,
    way: Any,
    said: float,
    *,
    step: float,
    tolerance: float,
) -> float | None:
    """The slope that differences show, where neither this step nor a longer one shows what is said.

    The longer ones are for what rounds to float32 inside, as a softmax does: they may be 1e-3 off.
    """
    slope = said
    for size, share in ((step, tolerance), (1e-4, 1e-3), (1e-3, 1e-3)):
        ahead = jax.tree.map(lambda x, d, size=size: x + size * d, arrays, way)
        behind = jax.tree.map(lambda x, d, size=size: x - size * d, arrays, way)
        slope = float(function(ahead) - function(behind)) / (2 * size)
        if np.isclose(said, slope, rtol=share, atol=share):
            return None
    return slope


@contract
def causal(subject: Subject, seed: int) -> Found:
    """Under `masks.Causal()` no bit of the past depends on the future, nor has it a gradient.

    LSH adds keys in the order of their slots, which later tokens move. So it is asked in float64,
    where its past may move by 1e-12 of its size: a rounding, and less than a leak.
    """
    if not subject.causal:
        raise Inapplicable("its mask cannot hide the future")
    if isinstance(getattr(subject.layer, "route", None), LSH):
        within_rounding = functools.partial(compare_numbers, tolerance=1e-12)
        with jax.enable_x64(True):
            yield from _find_leak(subject, seed, jnp.float64, within_rounding)
    else:
        yield from _find_leak(subject, seed, jnp.float32, compare_bits)


def _find_leak(subject: Subject, seed: int, dtype: Any, compare: Callable[..., Any]) -> Found:
    whole_tiles = subject.sizes(batch=1, queries=128, keys=128, num_kv_heads=1)
    for sizes in (subject.sizes(), whole_tiles):
        mask = subject.mask_of(causal=True, sizes=sizes)
        arrays = subject.arrays(seed, dtype, sizes)
        dcontext = np.asarray(dcontext_of(subject, sizes=sizes), dtype)
        length = min(sizes.queries, sizes.keys)
        for t in sorted({0, 1, 7, 8, length - 2}):
            of_past = dcontext.copy()
            of_past[:, t + 1 :] = 0
            context, grads = _run(subject, arrays, mask, of_past)
            other = subject.arrays(seed + 1 + t, dtype, sizes)
            changed = arrays | {
                name: arrays[name].at[:, t + 1 :].set(other[name][:, t + 1 :])
                for name in subject.batched
            }
            moved, _ = _run(subject, changed, mask, of_past)
            after = f" after positions {t + 1}, … changed, of {length}"
            yield compare("context", moved[:, : t + 1], context[:, : t + 1], after)
            for name in subject.keys if grads else ():
                late, what = grads[name][:, t + 1 :], f"gradient of queries up to {t} for later"
                yield compare_bits(f"{what} {name}", late, 0 * late)


@contract
def hidden_keys(subject: Subject, seed: int) -> Found:
    """What a mask hides, however large, changes nothing to the bit, and gets no gradient."""
    _require_mask(subject)
    visible = subject.visible_keys()
    rows = _rows(subject, visible)
    mask, arrays = subject.mask_of(visible=visible), subject.arrays(seed)
    dcontext = np.array(dcontext_of(subject))
    dcontext[~rows] = 0
    context, grads = _run(subject, arrays, mask, dcontext)
    for value in EXTREMES[: 2 if subject.projects else 3]:  # or a projection overflows
        changed = arrays | {
            name: jnp.where(_spread(visible, arrays[name]), arrays[name], value)
            for name in subject.keys
        }
        moved, moved_grads = _run(subject, changed, mask, dcontext)
        where = f" where hidden keys hold {value:g}"
        is_shown = _spread(rows, context)
        shown, before = np.where(is_shown, moved, 0), np.where(is_shown, context, 0)
        yield compare_bits("context", shown, before, where)
        yield compare_bits("gradient", moved_grads, grads, where)
    for name in () if subject.shares or not grads else subject.keys:
        late = grads[name][~visible]
        yield compare_bits(f"gradient of hidden {name}", late, 0 * late)


def _require_mask(subject: Subject) -> None:
    if subject.mask is None:
        raise Inapplicable("it takes no mask")


@contract
def empty_rows(subject: Subject, seed: int) -> Found:
    """A query that sees no key has a context of zero, and a gradient of zero."""
    _require_mask(subject)
    visible = subject.visible_keys()
    mask, arrays = subject.mask_of(visible=visible), subject.arrays(seed)
    context, grads = _run(subject, arrays, mask, dcontext_of(subject))
    empty = ~visible.any(-1)
    if not subject.projects:  # whose output has a bias
        yield compare_bits("context of an empty row", context[empty], 0 * context[empty])
    for name in subject.batched if grads else ():
        of_empty = grads[name][empty]
        yield compare_bits(f"gradient of {name} of an empty row", of_empty, 0 * of_empty)


@contract
def examples(subject: Subject, seed: int) -> Found:
    """Other numbers in one example change nothing in the others, to the bit."""
    arrays, mask, dcontext = subject.arrays(seed), subject.mask_of(), dcontext_of(subject)
    other = subject.arrays(seed + 3)
    mixed = arrays | {name: arrays[name].at[1].set(other[name][1]) for name in subject.batched}
    rest = np.array([0, 2, 3, 4])
    context, grads = _run(subject, arrays, mask, dcontext)
    moved, moved_grads = _run(subject, mixed, mask, dcontext)
    yield compare_bits("context", moved[rest], context[rest])
    if (moved[1] == context[1]).all():
        yield Broken("an example is the same whatever its numbers")
    for name in subject.batched if grads else ():
        yield compare_bits(f"gradient of {name}", moved_grads[name][rest], grads[name][rest])


@contract
def batch(subject: Subject, seed: int) -> Found:
    """`vmap` is the batch axis."""
    arrays = subject.arrays(seed)
    mask = subject.mask_of(visible=subject.visible_keys()) if subject.mask else None
    axes = {name: 0 if name in subject.batched else None for name in arrays}
    whole, _ = _run(subject, arrays, mask, dcontext_of(subject))
    # [B, 1, …], so that a function of [B, T, N, H] has its batch of one.
    mask = jax.tree.map(lambda x: x[:, None] if jnp.ndim(x) else x, mask)
    arrays |= {name: arrays[name][:, None] for name in subject.batched}
    mapped = jax.jit(jax.vmap(subject.apply, in_axes=(axes, 0)))(arrays, mask)
    yield compare_numbers("context", mapped[:, 0], whole)


@contract
def eager(subject: Subject, seed: int) -> Found:
    """What `jit` compiles is what Python computes."""
    arrays, mask = subject.arrays(seed), subject.mask_of()
    jitted, _ = _run(subject, arrays, mask, dcontext_of(subject))
    yield compare_numbers("context", jitted, subject.apply(arrays, mask))


@contract
def constants(subject: Subject, seed: int) -> Found:
    """Constant and broadcast arrays, summed in the same program, give what separate steps do.

    XLA for CPUs had a fusion that did not.
    """
    mask, whole = subject.mask_of(), subject.arrays(seed)

    def context(narrow: Arrays) -> jax.Array:
        wide = {name: jnp.broadcast_to(x, whole[name].shape) for name, x in narrow.items()}
        return subject.apply(whole | wide, mask)

    fused = jax.jit(lambda narrow: jnp.sum(jnp.square(context(narrow))))
    first = {name: whole[name][..., :1] for name in subject.batched}
    constant = {name: jnp.full((1,) * x.ndim, 0.5) for name, x in first.items()}
    for kind, narrow in (("constant", constant), ("broadcast", first)):
        apart = np.square(np.asarray(context(narrow), np.float64)).sum()
        what = f"sum of squares of {kind} arrays"
        yield compare_numbers(what, fused(narrow), apart, tolerance=1e-4)


@contract
def lengths(subject: Subject, seed: int) -> Found:
    """Contexts of no example, and of lengths 1 and 2, are finite; fewer queries see the same."""
    shape = _shape(subject, subject.sizes())
    for changed in ({"batch": 0}, *({"queries": n, "keys": n} for n in (1, 2))):
        sizes = subject.sizes()._replace(**changed)
        context = subject.apply(subject.arrays(seed, sizes=sizes), subject.mask_of(sizes=sizes))
        wanted = (sizes.batch, sizes.queries, *shape[2:])
        if context.shape != wanted:
            yield Broken(f"the context of {changed} is {context.shape}, not {wanted}")
        yield find_wrong(~np.isfinite(context), f"context of {changed}", context, 0)
    as_many = subject.sizes(queries=subject.sizes().keys)
    arrays, mask = subject.arrays(seed, sizes=as_many), subject.mask_of(sizes=as_many)
    if subject.shares or arrays.keys() != set(subject.batched):
        return
    context = subject.apply(arrays, mask)[:, :5]
    few = subject.apply(arrays | {name: arrays[name][:, :5] for name in subject.queries}, mask)
    yield compare_numbers("context of 5 queries, where others are as many as keys,", few, context)


@contract
def grouped_heads(subject: Subject, seed: int) -> Found:
    """Query heads that share keys and values are heads with copies of them."""
    if subject.shares:
        raise Inapplicable("queries and keys are one array")
    sizes = subject.sizes(group_size=2)
    arrays = subject.arrays(seed, sizes=sizes)
    mask = subject.mask_of(causal=subject.causal, visible=subject.visible_keys(), sizes=sizes)
    whole = arrays | {name: jnp.repeat(arrays[name], 2, 2) for name in subject.keys}
    try:
        context = subject.apply(arrays, mask)
    except (TypeError, ValueError) as error:
        raise Inapplicable(f"it refuses fewer heads of keys: {one_line(error)}") from None
    yield compare_numbers("context", context, subject.apply(whole, mask))


@contract
def second_derivative(subject: Subject, seed: int) -> Found:
    """The gradient of a gradient is the slope of that: differences of 1e-5 in float64."""
    _require_gradient(subject)
    with jax.enable_x64(True):
        arrays = subject.arrays(seed, jnp.float64, subject.sizes(batch=1))
        mask = subject.mask_of(sizes=subject.sizes(batch=1))
        way = jax.tree.map(
            lambda x: jnp.asarray(np.random.default_rng(seed).normal(size=x.shape)), arrays
        )

        @jax.jit
        def slope(arrays: Any) -> jax.Array:
            return _vdot(jax.grad(lambda a: jnp.sum(jnp.sin(subject.apply(a, mask))))(arrays), way)

        said = float(_vdot(jax.grad(slope)(arrays), way))
        found = _other_slope(slope, arrays, way, said, step=1e-5, tolerance=1e-3)
    if found is not None:
        yield Broken(f"the second derivative says {said:.6g}, not {found:.6g}")


@contract
def transforms(subject: Subject, seed: int) -> Found:
    """`jax.checkpoint` and `jax.lax.scan` compute what there is without them, with gradients."""
    _require_gradient(subject)
    arrays, mask, dcontext = subject.arrays(seed), subject.mask_of(), dcontext_of(subject)

    def in_scan(arrays: Arrays) -> jax.Array:
        def body(total: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return total + subject.apply(arrays, mask) / 2, None

        return jax.lax.scan(body, jnp.zeros_like(dcontext), length=2)[0]

    wanted = _run(subject, arrays, mask, dcontext)
    in_remat = jax.checkpoint(lambda arrays: subject.apply(arrays, mask))
    for name, function in (("checkpoint", in_remat), ("scan", in_scan)):
        got = jax.jit(lambda a, d, f=function: _vjp(f, a, d))(arrays, dcontext)
        yield compare_numbers(f"in jax {name}, (context, gradients)", got, wanted)


@contract
def devices(subject: Subject, seed: int) -> Found:
    """Split by example over two devices in `shard_map` it is that of one, with gradients."""
    _require_gradient(subject)
    if jax.device_count() < 2:
        raise Inapplicable("there is one device")
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sizes = subject.sizes(batch=4)
    visible = np.ones((4, sizes.keys), bool)
    visible[0, sizes.keys // 2 :] = False
    mask = subject.mask_of(visible=visible, sizes=sizes)
    operands = subject.arrays(seed, sizes=sizes), mask, dcontext_of(subject, seed, sizes)
    split = jax.tree.map(lambda x: jax.P("data") if jnp.ndim(x) else jax.P(), operands)
    whole = jax.tree.map(lambda x: jax.P(), operands[0])
    split[0].update({name: x for name, x in whole.items() if name not in subject.batched})
    sharded = jax.shard_map(
        context_and_grads(subject).__wrapped__,
        mesh=mesh,
        in_specs=split,
        out_specs=(jax.P("data"), split[0]),
    )
    try:
        got = jax.jit(sharded)(*operands)
    except TypeError as error:
        if "manual axis types" not in str(error):
            raise
        yield Broken("what a loop begins with must be of an input: jnp.zeros_like(q, shape=…)")
    yield compare_numbers("context, gradients", got, _run(subject, *operands))


@contract
def bfloat16(subject: Subject, seed: int) -> Found:
    """In bfloat16 no row of a thousand is four times as far off as rounded inputs explain.

    Of three draws of the arrays the best counts: a row is lost by its place, and where rounding
    decides what is seen, as a hash does, by its numbers.
    """
    sizes = subject.sizes(batch=1, queries=1009, keys=1013, num_kv_heads=1)
    mask = subject.mask_of(causal=subject.causal, sizes=sizes)
    apply = jax.jit(subject.apply)
    draws = []
    for draw in range(seed, seed + 3):
        arrays = subject.arrays(draw, jnp.bfloat16, sizes)
        context = apply(arrays, mask)
        if context.dtype != jnp.bfloat16:
            yield Broken(f"the context of bfloat16 is {context.dtype}")
        wide = jax.tree.map(lambda x: np.asarray(x, np.float32), arrays)
        true = apply(wide, mask)
        nearby = [apply(move(wide, rounding(jnp.bfloat16), i), mask) for i in range(4)]
        units = make_units("context", true, nearby, jnp.bfloat16, sizes.keys)
        draws.append(measure_rows(context, true) / np.maximum(units, np.finfo(float).tiny))
    least = np.min(draws, axis=0)
    yield find_wrong(least > 4, "the error, in roundings, of context", least, 4)


@contract
def deterministic(subject: Subject, seed: int) -> Found:
    """The same arrays give the same bits twice."""
    operands = subject.arrays(seed), subject.mask_of(), dcontext_of(subject)
    yield compare_bits("context, gradients", _run(subject, *operands), _run(subject, *operands))


@contract
def decoding(subject: Subject, seed: int) -> Found:
    """Token by token, and in pieces of random lengths, a layer computes its causal forward."""
    layer, length = subject.layer, 13
    if not subject.causal:
        raise Inapplicable("its mask cannot hide the future")
    if layer is None or "decode" not in inspect.signature(layer).parameters:
        raise Inapplicable("it does not decode")
    options = keywords_at_rest(layer)
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(2, length, 14)), jnp.float32)
    try:
        variables = layer.init(jax.random.key(seed), x, decode=True, **options)
    except NotImplementedError as error:
        raise Inapplicable(f"it does not decode: {error}") from None
    parameters = {name: y for name, y in variables.items() if name != "cache"}
    in_steps = options | {"decode": True, "mutable": ["cache"]}
    step = jax.jit(lambda state, x: layer.apply(state, x, **in_steps))
    whole = layer.apply(parameters, x, mask=masks.Causal(), **options)
    cuts = sorted(rng.choice(np.arange(1, length), 3, replace=False).tolist())
    for pieces in (range(1, length), cuts):
        state, parts = variables, []
        for piece in jnp.split(x, list(pieces), axis=1):
            y, updated = step(state, piece)
            state = {**parameters, **updated}
            parts.append(y)
        where = f", cut at {list(pieces)}"
        yield compare_numbers("decoded", jnp.concatenate(parts, 1), whole, where, tolerance=1e-4)
