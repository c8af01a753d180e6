"""What every mechanism promises, over the one list of them (`mechanism_cases.py`)."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import testing
from attnlab.ops.blockwise import engine
from attnlab.testing.contracts import context_and_grads, dcontext_of
from tests import oracle
from tests.mechanism_cases import BY_NAME, MECHANISMS, Mechanism, over

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
def test_shapes_and_useful_gradients(mechanism):
    assert testing.shapes(mechanism) is None
    operands = mechanism.arrays(), mechanism.mask_of(), dcontext_of(mechanism)
    with jax.numpy_dtype_promotion("strict"):  # an implicit promotion is an error
        context, _ = jax.eval_shape(context_and_grads(mechanism).__wrapped__, *operands)
    assert context.shape == mechanism.output(mechanism.sizes())


@EVERY
def test_values_do_not_recompile(mechanism):
    function = context_and_grads(mechanism)
    for seed in range(2):
        mask = mechanism.mask_of(visible=mechanism.visible_keys() if seed else None)
        function(mechanism.arrays(seed), mask, dcontext_of(mechanism, seed))
    assert function._cache_size() == 1


@over(MECHANISMS, "dot-blockwise", "hard_additive", "local_m", "lsh-sorted")
def test_eager_is_jit_and_compiles_once(mechanism):
    mask, arrays = mechanism.mask_of(), mechanism.arrays()
    eager = mechanism.apply(arrays, mask)
    jitted, _ = context_and_grads(mechanism)(arrays, mask, dcontext_of(mechanism))
    np.testing.assert_allclose(eager, jitted, rtol=1e-5, atol=1e-6)
    assert compilations(lambda: mechanism.apply(arrays, mask)) == 0


@over(EACH_PART, "dot-blockwise", "window-blockwise", "local_m", "lsh_cross-dense")
def test_vmap_is_the_batch_axis(mechanism):
    arrays, mask = mechanism.arrays(), mechanism.mask_of()
    if mechanism.mask is not None:
        mask = mechanism.mask_of(visible=mechanism.visible_keys())
    axes = {name: 0 if name in mechanism.batched else None for name in arrays}
    mapped = jax.jit(jax.vmap(mechanism.apply, in_axes=(axes, 0)))(arrays, mask)
    whole, _ = context_and_grads(mechanism)(arrays, mask, dcontext_of(mechanism))
    np.testing.assert_allclose(mapped, whole, rtol=1e-5, atol=1e-6)


@over(ENGINES, "additive-dense", "local_m")
def test_pmap_over_two_devices(mechanism):
    halves = [mechanism.arrays(seed) for seed in range(2)]
    halves[1] |= {name: x for name, x in halves[0].items() if name not in mechanism.batched}
    axes = {name: 0 if name in mechanism.batched else None for name in halves[0]}
    arrays = {
        name: np.stack([half[name] for half in halves]) if axis == 0 else halves[0][name]
        for name, axis in axes.items()
    }
    mask = mechanism.mask_of()
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
    masked = [mechanism.mask_of(visible=x) for x in (mechanism.visible_keys(), None)]
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
def test_in_shard_map_with_its_defaults(mechanism):
    """The gradient of a parameter that both devices share is the sum of theirs."""
    assert testing.devices(mechanism) is None


@over(EACH_PART, "dot-blockwise", "additive-dense", "lsh_cross-dense", "local_m")
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
def test_an_empty_batch_gives_nothing(mechanism):
    """Empty arrays of the right shape, and a gradient of zero for the parameters."""
    arrays, mask, dcontext = mechanism.arrays(), mechanism.mask_of(), dcontext_of(mechanism)
    arrays |= {name: arrays[name][:0] for name in mechanism.batched}
    mask = jax.tree.map(lambda x: x[:0] if jnp.ndim(x) else x, mask)
    function = jax.jit(context_and_grads(mechanism).__wrapped__)
    context, grads = function(arrays, mask, dcontext[:0])
    assert context.shape == (0, *dcontext.shape[1:]) and context.dtype == jnp.float32
    for name, grad in grads.items():
        assert grad.shape == arrays[name].shape and not np.any(grad), name


@EVERY
def test_bfloat16(mechanism):
    if mechanism.plain is None:
        assert testing.bfloat16(mechanism) is None
        return
    arrays = mechanism.arrays(dtype=jnp.bfloat16)
    mask = mechanism.mask_of()
    context = jax.jit(mechanism.apply)(arrays, mask)
    assert context.dtype == jnp.bfloat16
    same_in_float32 = {name: np.asarray(x, np.float32) for name, x in arrays.items()}
    true, _ = context_and_grads(mechanism)(same_in_float32, mask, dcontext_of(mechanism))
    true = np.asarray(true, np.float64)
    plain = jax.jit(BY_NAME[mechanism.plain].apply)(arrays, mask)
    oracle.assert_within_budget(context, plain, true, jnp.bfloat16)


@MASKED
def test_hidden_values_change_nothing(mechanism):
    assert testing.hidden_keys(mechanism) is None


@MASKED
def test_empty_rows_are_zero(mechanism):
    assert testing.empty_rows(mechanism) is None


@CAUSAL
def test_causal_to_the_bit(mechanism):
    assert testing.causal(mechanism) is None


@EVERY
def test_examples_do_not_meet(mechanism):
    assert testing.examples(mechanism) is None
