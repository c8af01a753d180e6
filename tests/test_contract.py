"""What every mechanism promises, over the one list of them (`mechanisms.py`)."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops.blockwise import engine
from tests import oracle
from tests.mechanisms import BY_NAME, MECHANISMS, Mechanism, over

EVERY = over(MECHANISMS)
# `Score.prepare` turns these scores into the dot or the tanh of other arrays, before and apart from
# the engines. What asks JAX rather than the score compiles each preparation and each engine once.
PREPARED = ("scaled_dot", "general", "cosine", "normalized_additive", "concat")
EACH_PART = [
    m for m in MECHANISMS if not (m.name.startswith(PREPARED) and m.name.endswith("-dense"))
]
ENGINES = [m for m in MECHANISMS if not m.name.startswith(PREPARED)]
MASKED = over(m for m in MECHANISMS if m.mask is not None)
CAUSAL = over(m for m in MECHANISMS if m.causal)


@pytest.fixture(scope="module", autouse=True)
def many_small_blocks() -> Iterator[None]:
    """Blocks of 8, so that these short sequences are cut in several, unevenly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "default_block", lambda mask: 8)
        jax.clear_caches()
        yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def quick_where_the_program_is_shared(request):
    """Optimized: the dot, the tanh in blocks, the window. The others prepare q and k for them."""
    arguments = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "mechanism" in arguments:
        if not arguments["mechanism"].name.startswith(("dot-", "additive-blockwise", "window-")):
            request.getfixturevalue("quick_compile")


@functools.cache
def context_and_grads(mechanism: Mechanism):
    """Compiled once for each mechanism: (arrays, mask, dcontext) -> (context, gradients).

    Nothing in it is promoted implicitly: that would be an error here.
    """

    def run(arrays, mask, dcontext):
        with jax.numpy_dtype_promotion("strict"):
            context, pull_back = jax.vjp(lambda arrays: mechanism.apply(arrays, mask), arrays)
            return context, pull_back(dcontext)[0]

    return jax.jit(run)


def visible_keys(mechanism: Mechanism) -> np.ndarray:
    """Padding at the first two positions, in the middle, at the end, everywhere and nowhere."""
    sizes = mechanism.sizes()
    visible = np.ones((sizes.batch, sizes.keys), bool)
    if mechanism.hides_anywhere:
        visible[0, :2] = False
        visible[1, [0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]] = False
        visible[2, 1] = visible[2, -1] = False
    else:
        visible[0, 1:] = visible[1, 2:] = visible[2, -1:] = False
    visible[3] = False
    return visible


def mask_of(mechanism: Mechanism, *, causal: bool = False, visible: np.ndarray | None = None):
    if mechanism.mask is None:
        return None
    sizes = mechanism.sizes()
    everything = np.ones((sizes.batch, sizes.keys), bool)
    return mechanism.mask(everything if visible is None else visible, causal)


def dcontext_of(mechanism: Mechanism, seed: int = 1) -> jax.Array:
    shape = mechanism.output(mechanism.sizes())
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def rows_to_check(mechanism: Mechanism, visible: np.ndarray) -> np.ndarray:
    """[B, T]: all queries, less those whose own array holds the garbage."""
    sizes = mechanism.sizes()
    shared = set(mechanism.queries) & set(mechanism.keys)
    return visible if shared else np.ones((sizes.batch, sizes.queries), bool)


def spread(rows: np.ndarray, like) -> np.ndarray:
    """[B, T] with axes of 1 up to the rank of `like`."""
    return rows.reshape(*rows.shape, *(1,) * (np.ndim(like) - rows.ndim))


def compilations(function) -> int:
    """How many programs XLA compiles in a call."""
    seen = []

    def listen(event, duration, **_):
        seen.append(event) if event.endswith("backend_compile_duration") else None

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(function())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(seen)


def test_compilations_are_counted():
    function = jax.jit(lambda x: x * 3 + 1)
    x = jnp.arange(97.0)
    assert compilations(lambda: function(x)) == 1
    assert compilations(lambda: function(x)) == 0


@EVERY
def test_shape_dtype_and_useful_gradients(mechanism):
    arrays = mechanism.arrays()
    context, grads = context_and_grads(mechanism)(
        arrays, mask_of(mechanism), dcontext_of(mechanism)
    )
    assert context.shape == mechanism.output(mechanism.sizes())
    assert context.dtype == jnp.float32
    assert np.isfinite(context).all()
    for name, grad in grads.items():
        assert grad.shape == arrays[name].shape and grad.dtype == arrays[name].dtype, name
        assert np.isfinite(grad).all(), name
        assert np.abs(grad).max() > 1e-3, f"{name} has no influence"


@EVERY
def test_values_do_not_recompile(mechanism):
    function = context_and_grads(mechanism)
    for seed in range(2):
        mask = mask_of(mechanism, visible=visible_keys(mechanism) if seed else None)
        function(mechanism.arrays(seed), mask, dcontext_of(mechanism, seed))
    assert function._cache_size() == 1


@over(MECHANISMS, "dot-blockwise", "hard_additive", "local_m", "lsh-sorted")
def test_eager_is_jit_and_compiles_once(mechanism):
    mask, arrays = mask_of(mechanism), mechanism.arrays()
    eager = mechanism.apply(arrays, mask)
    jitted, _ = context_and_grads(mechanism)(arrays, mask, dcontext_of(mechanism))
    np.testing.assert_allclose(eager, jitted, rtol=1e-5, atol=1e-6)
    assert compilations(lambda: mechanism.apply(arrays, mask)) == 0


@over(EACH_PART, "dot-blockwise", "window-blockwise", "local_m", "lsh_cross-dense")
@pytest.mark.usefixtures("quick_compile")
def test_vmap_is_the_batch_axis(mechanism):
    arrays, mask = mechanism.arrays(), mask_of(mechanism)
    if mechanism.mask is not None:
        mask = mask_of(mechanism, visible=visible_keys(mechanism))
    axes = {name: 0 if name in mechanism.batched else None for name in arrays}
    mapped = jax.jit(jax.vmap(mechanism.apply, in_axes=(axes, 0)))(arrays, mask)
    whole, _ = context_and_grads(mechanism)(arrays, mask, dcontext_of(mechanism))
    np.testing.assert_allclose(mapped, whole, rtol=1e-5, atol=1e-6)


@over(ENGINES, "additive-dense", "local_m")
@pytest.mark.usefixtures("quick_compile")
def test_pmap_over_two_devices(mechanism):
    halves = [mechanism.arrays(seed) for seed in range(2)]
    halves[1] |= {name: x for name, x in halves[0].items() if name not in mechanism.batched}
    axes = {name: 0 if name in mechanism.batched else None for name in halves[0]}
    arrays = {
        name: np.stack([half[name] for half in halves]) if axis == 0 else halves[0][name]
        for name, axis in axes.items()
    }
    mask = mask_of(mechanism)
    mapped = jax.pmap(mechanism.apply, in_axes=(axes, None))(arrays, mask)
    assert len(mapped.sharding.device_set) == 2
    for half, context in zip(halves, mapped, strict=True):
        whole, _ = context_and_grads(mechanism)(half, mask, dcontext_of(mechanism))
        np.testing.assert_allclose(context, whole, rtol=1e-5, atol=1e-6)


def over_two_devices(mechanism: Mechanism):
    """Two batches in one, the parameters of the first: (arrays, mask, dcontext), and their specs.

    They are split by example; what has no batch axis is on both devices.
    """
    first, second = mechanism.arrays(), mechanism.arrays(seed=1)
    joined = {name: np.concatenate([first[name], second[name]]) for name in mechanism.batched}
    masked = [mask_of(mechanism, visible=x) for x in (visible_keys(mechanism), None)]
    mask = jax.tree.map(lambda *x: np.concatenate(x) if jnp.ndim(x[0]) else x[0], *masked)
    dcontext = np.concatenate([dcontext_of(mechanism, seed) for seed in (1, 2)])
    operands = first | joined, mask, dcontext
    specs = jax.tree.map(lambda x: jax.P("data") if jnp.ndim(x) else jax.P(), operands)
    specs[0].update({name: jax.P() for name in first if name not in mechanism.batched})
    return operands, specs


def assert_as_on_one_device(mechanism: Mechanism, found, operands):
    """(context, gradients) of `over_two_devices` are those of its halves, one after the other."""
    arrays, mask, dcontext = operands
    half = len(dcontext) // 2

    def part(name, x, i):
        batched = jnp.ndim(x) and (name is None or name in mechanism.batched)
        return x[i * half : (i + 1) * half] if batched else x

    halves = [
        context_and_grads(mechanism)(
            {name: part(name, x, i) for name, x in arrays.items()},
            jax.tree.map(lambda x, i=i: part(None, x, i), mask),
            part(None, dcontext, i),
        )
        for i in range(2)
    ]
    (context, grads), (one, two) = found, halves
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(context, np.concatenate([one[0], two[0]]))
    for name, grad in grads.items():
        parts = one[1][name], two[1][name]
        whole = np.concatenate(parts) if name in mechanism.batched else np.add(*parts)
        close(grad, whole, err_msg=name)


@over(EACH_PART, "dot-blockwise", "window-blockwise", "lsh-sorted", "local_m")
@pytest.mark.usefixtures("quick_compile")
def test_in_shard_map_with_its_defaults(mechanism):
    """The gradient of a parameter that both devices share is the sum of theirs."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    operands, specs = over_two_devices(mechanism)
    function = jax.shard_map(
        context_and_grads(mechanism).__wrapped__,
        mesh=mesh,
        in_specs=specs,
        out_specs=(jax.P("data"), specs[0]),
    )
    assert_as_on_one_device(mechanism, jax.jit(function)(*operands), operands)


@over(EACH_PART, "dot-blockwise", "additive-dense", "lsh_cross-dense", "local_m")
@pytest.mark.usefixtures("quick_compile")
def test_on_a_mesh_with_explicit_axes(mechanism):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    operands, specs = over_two_devices(mechanism)
    placed = jax.tree.map(
        lambda x, spec: jax.device_put(x, jax.NamedSharding(mesh, spec)), operands, specs
    )
    found = jax.jit(context_and_grads(mechanism).__wrapped__)(*placed)
    assert jax.typeof(found[0]).sharding.spec[0] == "data"
    assert_as_on_one_device(mechanism, found, operands)


@over(EACH_PART, "dot-blockwise", "hard_additive", "local_m", "lsh-sorted")
@pytest.mark.usefixtures("quick_compile")
def test_an_empty_batch_gives_nothing(mechanism):
    """Empty arrays of the right shape, and a gradient of zero for the parameters."""
    arrays, mask, dcontext = mechanism.arrays(), mask_of(mechanism), dcontext_of(mechanism)
    arrays |= {name: arrays[name][:0] for name in mechanism.batched}
    mask = jax.tree.map(lambda x: x[:0] if jnp.ndim(x) else x, mask)
    function = jax.jit(context_and_grads(mechanism).__wrapped__)
    context, grads = function(arrays, mask, dcontext[:0])
    assert context.shape == (0, *dcontext.shape[1:]) and context.dtype == jnp.float32
    for name, grad in grads.items():
        assert grad.shape == arrays[name].shape and not np.any(grad), name


@EVERY
@pytest.mark.usefixtures("quick_compile")
def test_bfloat16(mechanism):
    arrays = mechanism.arrays(dtype=jnp.bfloat16)
    mask = mask_of(mechanism)
    context = jax.jit(mechanism.apply)(arrays, mask)
    assert context.dtype == jnp.bfloat16
    same_in_float32 = {name: np.asarray(x, np.float32) for name, x in arrays.items()}
    true, _ = context_and_grads(mechanism)(same_in_float32, mask, dcontext_of(mechanism))
    true = np.asarray(true, np.float64)
    if mechanism.plain is None:
        # As much as if every input were off by up to a unit in the last place, and the context too.
        signs = np.random.default_rng(4)
        moved = {
            name: x * np.float32(1 + 2.0**-7 * signs.choice([-1, 1], x.shape))
            for name, x in same_in_float32.items()
        }
        off, _ = context_and_grads(mechanism)(moved, mask, dcontext_of(mechanism))
        budget = oracle.error(off, true) + 2**-7 * np.abs(true).max()
        assert oracle.error(context, true) <= budget
    else:
        plain = jax.jit(BY_NAME[mechanism.plain].apply)(arrays, mask)
        oracle.assert_within_budget(context, plain, true, jnp.bfloat16)


def garbage(mechanism: Mechanism, arrays, visible: np.ndarray, value: float):
    """The arrays with ±value at every hidden key position."""
    signs = np.random.default_rng(2)
    changed = {}
    for name in mechanism.keys:
        x = np.array(arrays[name])
        hidden = ~np.broadcast_to(spread(visible, x), x.shape)
        x[hidden] = value * signs.choice([-1, 1], hidden.sum())
        changed[name] = jnp.asarray(x)
    return arrays | changed


@MASKED
@pytest.mark.parametrize("value", [1e4, 1e18, float(np.finfo(np.float32).max)])
def test_hidden_values_change_nothing(mechanism, value):
    visible = visible_keys(mechanism)
    rows = rows_to_check(mechanism, visible)
    arrays, mask = mechanism.arrays(), mask_of(mechanism, visible=visible)
    dcontext = np.array(dcontext_of(mechanism))
    dcontext[~rows] = 0
    function = context_and_grads(mechanism)
    context, grads = function(arrays, mask, dcontext)
    changed, changed_grads = function(garbage(mechanism, arrays, visible, value), mask, dcontext)
    np.testing.assert_array_equal(np.asarray(changed)[rows], np.asarray(context)[rows])
    for name in grads:
        np.testing.assert_array_equal(changed_grads[name], grads[name], err_msg=name)


@MASKED
def test_hidden_keys_get_no_gradient_and_empty_rows_are_zero(mechanism):
    visible = visible_keys(mechanism)
    context, grads = context_and_grads(mechanism)(
        mechanism.arrays(), mask_of(mechanism, visible=visible), dcontext_of(mechanism)
    )
    empty = ~visible.any(-1)
    assert empty.any() and not empty.all()
    np.testing.assert_array_equal(np.asarray(context)[empty], 0)
    assert (np.abs(np.asarray(context)[~empty]).max((-2, -1)) > 0).any(-1).all()
    for name in mechanism.batched:
        np.testing.assert_array_equal(np.asarray(grads[name])[empty], 0, err_msg=name)
    if not set(mechanism.queries) & set(mechanism.keys):
        for name in mechanism.keys:
            np.testing.assert_array_equal(np.asarray(grads[name])[~visible], 0, err_msg=name)


@CAUSAL
def test_causal_by_gradient(mechanism):
    """No gradient flows from a query to a later key, and some does to its own and earlier ones."""
    arrays, mask = mechanism.arrays(), mask_of(mechanism, causal=True)
    everything = np.asarray(dcontext_of(mechanism))
    for t in (0, 1, 7, 8, mechanism.sizes().queries - 1):
        of_one = np.zeros_like(everything)
        of_one[:, t] = everything[:, t]
        _, grads = jax.tree.map(np.asarray, context_and_grads(mechanism)(arrays, mask, of_one))
        for name in mechanism.keys:
            np.testing.assert_array_equal(grads[name][:, t + 1 :], 0, err_msg=f"{name} after {t}")
        assert any((np.abs(grads[name][:, t]) > 0).any() for name in mechanism.keys), t


@EVERY
def test_examples_do_not_meet(mechanism):
    """Other numbers in one example change nothing in the others, bit for bit."""
    arrays, mask, dcontext = mechanism.arrays(), mask_of(mechanism), dcontext_of(mechanism)
    other = mechanism.arrays(seed=3)
    mixed = arrays | {name: np.array(arrays[name]) for name in mechanism.batched}
    for name in mechanism.batched:
        mixed[name][1] = other[name][1]
    context, grads = context_and_grads(mechanism)(arrays, mask, dcontext)
    changed, changed_grads = context_and_grads(mechanism)(mixed, mask, dcontext)
    rest = [0, 2, 3, 4]
    np.testing.assert_array_equal(np.asarray(changed)[rest], np.asarray(context)[rest])
    assert (np.asarray(changed)[1] != np.asarray(context)[1]).any()
    for name in mechanism.batched:
        np.testing.assert_array_equal(
            np.asarray(changed_grads[name])[rest], np.asarray(grads[name])[rest], err_msg=name
        )
