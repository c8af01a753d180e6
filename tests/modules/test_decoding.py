"""Decoding with the key/value cache is the causal forward over the whole sequence."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    MultiHeadAttention,
    RelativePositionBias,
    attention,
    attention_weights,
    biases,
    masks,
    routes,
)
from tests import oracle
from tests.daily import daily
from tests.modules.reference import apply, init, multi_head
from tests.modules.test_multi_head import DENSE, SCORES
from tests.nnx.as_linen import AsLinen

pytestmark = pytest.mark.usefixtures("x64")

B, L, D = 3, 11, 12
CACHE = L + 2  # so that some slots are never written
ONE_BY_ONE = (1,) * L
EXACT = {"rtol": 1e-11, "atol": 1e-13}


def mha(num_heads=3, route=DENSE, **options):
    return MultiHeadAttention(num_heads, route=route, param_dtype=jnp.float64, **options)


def sequence(seed=0, length=L):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, length, D)))


def empty_cache(module, *, garbage=0.0):
    """Variables with a cache of CACHE tokens, which hold `garbage` until they are written."""
    variables = init(module, sequence(length=CACHE), decode=True)
    cache = {
        name: x if name == "cache_index" else jnp.asarray(np.full_like(x, garbage))
        for name, x in variables["cache"].items()
    }
    return {**variables, "cache": cache}


def decode(module, variables, x, *all_splits, **options):
    """x in consecutive pieces, from the same variables for each way to split it.

    Returns the outputs, joined, and the last variables.
    """

    @jax.jit
    def step(variables, piece):
        return module.apply(variables, piece, decode=True, mutable=["cache"], **options)

    first = variables
    for splits in all_splits:
        outputs, start, variables = [], 0, first
        for size in splits:
            y, updated = step(variables, x[:, start : start + size])
            outputs.append(y)
            variables = {**variables, **updated}
            start += size
        yield np.concatenate(outputs, 1), variables
    sizes = {size for splits in all_splits for size in splits}
    assert step._cache_size() == len(sizes), "a step compiles once for each length"


CONFIGURATIONS = {
    "plain": mha(),
    "turned": mha(num_heads=6, num_kv_heads=2, rotary=True, normalize_qk=True),
    "blockwise": mha(route=routes.AllPairs()),
    "window": mha(route=routes.Window(2, 0, "dense")),
    "window_ahead": mha(route=routes.Window(2, 1, "dense")),
    "window_blockwise": mha(route=routes.Window(2, 0)),
    "chunked": mha(route=routes.Chunked(2, implementation="dense")),
}

CONFIGURATIONS |= {f"nnx_{name}": AsLinen(module) for name, module in CONFIGURATIONS.items()}


@pytest.mark.parametrize("name", daily(CONFIGURATIONS, "plain", "window", "nnx_plain"))
def test_any_split_is_the_causal_forward(name):
    module, x = CONFIGURATIONS[name], sequence()
    variables = empty_cache(module, garbage=1e30)
    true = apply(module, {"params": variables["params"]}, x, mask=masks.Causal())
    # Rotary turns in float32, whatever the inputs.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if name.endswith("turned") else EXACT
    splits = ONE_BY_ONE, (5, 1, 5), (1, 5, 5), (5, 5, 1)
    for got, after in decode(module, variables, x, *splits):
        np.testing.assert_allclose(got, true, **tolerance)
        assert after["cache"]["cache_index"] == L
        assert after["cache"]["cached_key"].shape[-3] == CACHE


@pytest.mark.parametrize("name", ["general", "additive", "location"])
def test_other_scores_decode(name):
    score, *_ = SCORES[name]
    if name == "location":
        score = score.clone(max_length=CACHE)
    module, x = mha(score=score), sequence()
    variables = empty_cache(module)
    [(got, _)] = decode(module, variables, x[:, :4], (3, 1))
    true = apply(module, {"params": variables["params"]}, x[:, :4], mask=masks.Causal())
    np.testing.assert_allclose(got, true, **EXACT)


def test_prompts_of_different_lengths_are_padded_in_front():
    """Each example is as if it were alone, without its padding; rotary sees distances only."""
    padding = np.array([0, 4, 1])
    visible = jnp.asarray(np.arange(CACHE) >= padding[:, None])[:, None, None]
    module, x = mha(rotary=True), sequence()
    variables = empty_cache(module)
    [(got, _)] = decode(module, variables, x, (5, 1, 5), mask=visible)
    params = {"params": variables["params"]}
    for row, start in enumerate(padding):
        alone = apply(module, params, x[row : row + 1, start:], mask=masks.Causal())
        np.testing.assert_allclose(got[row, start:], alone[0], rtol=1e-5, atol=1e-5)


WHOLE_SEQUENCE = {
    "causal": masks.Causal(),
    "window": masks.Window(2, 1),
    "segments": masks.Segments(jnp.arange(CACHE) // 4),
    "query_lengths": masks.Padding(jnp.array([CACHE, 4, 7]), jnp.array([CACHE, 6, 2])),
    "explicit": jnp.asarray(np.random.default_rng(1).random((1, CACHE, CACHE)) < 0.7),
    "both": masks.Window(3, 0) & masks.Segments(jnp.arange(CACHE) // 4),
    "keys": jnp.arange(CACHE) % 3 < 2,
}


@pytest.mark.parametrize("name", WHOLE_SEQUENCE)
def test_the_mask_of_the_whole_sequence_is_cut_to_the_new_tokens(name):
    module, x, mask = mha(), sequence(length=CACHE), WHOLE_SEQUENCE[name]
    bias = jnp.asarray(np.random.default_rng(2).normal(size=(CACHE, CACHE)))
    bias = bias[0] if name == "keys" else bias  # of the same rank as the mask
    variables = empty_cache(module)
    [(got, _)] = decode(module, variables, x, (5, 1, 7), mask=mask, bias=bias)
    whole = masks.combine(masks.Causal(), mask)
    true = apply(module, {"params": variables["params"]}, x, mask=whole, bias=bias)
    np.testing.assert_allclose(got, true, **EXACT)


def test_a_bias_by_distance_is_cut_to_the_new_tokens():
    module, x = mha(), sequence(length=CACHE)
    bias = biases.Relative(jnp.asarray(np.random.default_rng(2).normal(size=2 * CACHE - 1)))
    variables = empty_cache(module)
    [(got, _)] = decode(module, variables, x, (5, 1, 7), bias=bias)
    true = apply(module, {"params": variables["params"]}, x, mask=masks.Causal(), bias=bias)
    np.testing.assert_allclose(got, true, **EXACT)
    of_host = mha(position_bias=RelativePositionBias(bidirectional=False))
    variables = empty_cache(of_host)
    [(got, _)] = decode(of_host, variables, x, (5, 1, 7))
    true = apply(of_host, {"params": variables["params"]}, x, mask=masks.Causal())
    np.testing.assert_allclose(got, true, **EXACT)


class Past(masks.Mask):
    """Causal, but only `visible` knows it."""

    def visible(self, i, j):
        return j <= i


@pytest.mark.parametrize(
    ("route", "mask"),
    [
        (DENSE, Past() & masks.Padding(L)),
        (DENSE, Past().for_queries(0, L)),
        (routes.Masked(Past()), masks.Padding(L)),
        (routes.Masked(masks.Explicit(np.tri(L, dtype=bool))), None),
    ],
    ids=["own", "cut", "own route", "route of an array"],
)
def test_a_bias_by_distance_asks_whether_the_future_is_seen(route, mask):
    """Decoding is causal; a forward pass that took the same mask for another had other biases."""
    module, x = mha(route=route, position_bias=RelativePositionBias()), sequence()
    with pytest.raises(ValueError, match="RelativePositionBias must know"):
        init(module, x, mask=mask)
    init(module, x, mask=masks.combine(masks.Causal(), mask))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": WHOLE_SEQUENCE["explicit"][:, :3]},  # as many as new tokens
        {"bias": jnp.zeros((CACHE - 2, CACHE))},
    ],
    ids=["mask", "bias"],
)
def test_a_mask_of_other_rows_than_the_caches_is_refused(options):
    """A slice that begins too late would begin where it still fits, without a word."""
    module, x = mha(), sequence(length=3)
    variables = empty_cache(module)
    rule = (
        f"decode=True takes mask and bias of the whole sequence, {CACHE} tokens as in the cache: "
    )
    with pytest.raises(ValueError, match=rf"{rule}.*; got"):
        module.apply(variables, x, decode=True, mutable=["cache"], **options)


def test_weights_while_decoding():
    module, x = CONFIGURATIONS["window"], sequence()
    variables = empty_cache(module)
    [(_, variables)] = decode(module, variables, x[:, :6], (6,))
    (_, weights), _ = apply(
        module, variables, x[:, 6:7], decode=True, return_weights=True, mutable=["cache"]
    )
    params = {"params": variables["params"]}
    _, true = apply(module, params, x[:, :7], mask=masks.Causal(), return_weights=True)
    assert weights.shape == (B, 3, 1, CACHE)
    np.testing.assert_allclose(weights[..., :7], true[..., 6:7, :], **EXACT)
    np.testing.assert_array_equal(weights[..., 7:], 0)
    full = {**variables, "cache": {**variables["cache"], "cache_index": jnp.int32(CACHE)}}
    (_, weights), _ = apply(
        module, full, x[:, :1], decode=True, return_weights=True, mutable=["cache"]
    )
    assert np.isnan(weights).all()


def test_past_the_end_of_the_cache_is_nan():
    module, x = mha(), sequence(length=CACHE + 5)
    splits = (6,) + (1,) * (CACHE - 3), (6, 6, 1, 1), (6, 1, 6, 1), (6, 6, 6)
    variables = empty_cache(module)
    found = list(decode(module, variables, x, *splits))
    for (got, _), fitting in zip(found, (CACHE, CACHE, CACHE, 12), strict=True):
        assert np.isfinite(got[:, :fitting]).all()
        assert got.shape[1] > fitting and np.isnan(got[:, fitting:]).all()


def test_the_cache_keeps_the_dtype_of_the_computation():
    module = mha().clone(dtype=jnp.bfloat16)
    variables = init(module, sequence(length=CACHE), decode=True)
    assert variables["cache"]["cached_key"].dtype == jnp.bfloat16
    [(got, variables)] = decode(module, variables, sequence()[:, :2], (1, 1))
    assert got.dtype == variables["cache"]["cached_value"].dtype == jnp.bfloat16
    assert variables["cache"]["cache_index"].dtype == jnp.int32
    wide = module.clone(dtype=jnp.float32)
    [(got, variables)] = decode(wide, variables, sequence()[:, :1], (1,))
    assert got.dtype == jnp.float32 and variables["cache"]["cached_key"].dtype == jnp.bfloat16


CROSS = {
    "plain": mha(value_features=15),
    "turned": mha(num_heads=6, num_kv_heads=2, rotary=True, normalize_qk=True),
    "window": mha(route=routes.Window(2, 1, "dense")),
    "general": mha(score=SCORES["general"][0]),
}

CROSS |= {f"nnx_{name}": AsLinen(module) for name, module in CROSS.items()}


@pytest.mark.parametrize("name", daily(CROSS, "plain", "turned", "window", "general", "nnx_turned"))
def test_keys_of_another_sequence_are_projected_by_the_first_call_only(name):
    """Later calls need neither them nor the parameters that project them."""
    module, x, source = CROSS[name], sequence(), sequence(seed=1, length=7)[..., :5]
    ids = np.random.default_rng(2).integers(0, 2, (2, L))
    options = {
        "mask": masks.Segments(jnp.asarray(ids[0]), jnp.asarray(ids[1, :7])),
        "bias": jnp.asarray(np.random.default_rng(3).normal(size=(L, 7))),
    }
    variables = init(module, x, source, decode=True)
    assert "static" not in variables  # the source of the calls to come is not known yet
    params = variables["params"]
    true = apply(module, {"params": params}, x, source, **options)

    def step(variables, piece, source, mutable):
        return apply(module, variables, piece, source, decode=True, mutable=mutable, **options)

    y, state = step({"params": params}, x[:, :4], source, ["cache", "static"])
    outputs, static = [y], state["static"]
    params = {name: x for name, x in params.items() if not name.startswith(("key", "value"))}
    unread = jnp.full_like(source, jnp.nan)
    for piece in (x[:, 4:5], x[:, 5:]):
        variables = {"params": params, "static": static, "cache": state["cache"]}
        y, state = step(variables, piece, unread, ["cache"])
        outputs.append(y)
    # Rotary turns in float32, whatever the inputs.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if name.endswith("turned") else EXACT
    np.testing.assert_allclose(jnp.concatenate(outputs, 1), true, **tolerance)
    assert state["cache"]["cache_index"] == L


def test_values_of_a_width_of_their_own():
    module, x = mha(qkv_features=6, value_features=15), sequence()
    variables = empty_cache(module)
    shapes = jax.tree.map(jnp.shape, variables)
    assert shapes["params"]["key"]["kernel"] == (D, 3, 2)
    assert shapes["params"]["value"]["kernel"] == (D, 3, 5)
    assert shapes["params"]["out"]["kernel"] == (3, 5, D)
    assert shapes["cache"]["cached_value"] == (B, CACHE, 3, 5)
    [(got, _)] = decode(module, variables, x, (6, 5))
    true, _ = multi_head(variables["params"], x, x, x, mask=oracle.causal(L, L))
    np.testing.assert_allclose(got, true, **EXACT)


class Shared(nn.Module):
    """One module for two layers (ALBERT) or two sources; `scanned` as the refusal tells to."""

    scanned: bool = False

    @nn.compact
    def __call__(self, x, sources=(None, None), *, decode=False, mask=None):
        module = mha(name="shared")
        if self.scanned:
            layer = nn.remat(lambda module, x: (module(x, decode=decode, mask=mask), None))
            options = {"variable_axes": {"cache": 0}, "split_rngs": {"params": False}, "length": 2}
            return nn.scan(layer, variable_broadcast="params", **options)(module, x)[0]
        for source in sources:
            x = module(x, source, decode=decode, mask=mask)
        return x


def test_a_module_that_is_called_twice_has_no_cache_for_the_second_call():
    """It would read the first's source; a cache for two is on the page of refusals."""
    x, source, scanned = sequence(), sequence(seed=1), Shared(scanned=True)
    variables, mutable = init(Shared(), x), ["cache", "static"]
    with pytest.raises(ValueError, match="one source; got a second call of shared"):
        apply(Shared(), variables, x, (x, source), decode=True, mutable=mutable)
    true = apply(Shared(), variables, x, mask=masks.Causal())
    [(got, _)] = decode(scanned, init(scanned, x, decode=True), x, (6, 5))
    np.testing.assert_allclose(got, true, **EXACT)


@dataclasses.dataclass(frozen=True)
class Even(routes.Exact):
    """A route of a user's own: every query visits the keys at even positions."""

    def __call__(self, score, q, k, v, *, q_offset=0, **options):
        options["mask"] = self.visible(k, options["mask"])
        return attention(score, q, k, v, **options)

    def weights(self, score, q, k, *, q_offset=0, **options):
        options["mask"] = self.visible(k, options["mask"])
        return attention_weights(score, q, k, **options)

    def visible(self, k, mask):
        even = masks.Explicit(jnp.arange(k.shape[-3])[None, None, None] % 2 == 0)
        return masks.combine(even, mask)


def test_a_route_of_a_users_own_is_called_and_decodes():
    mha = MultiHeadAttention(2, route=Even())
    x = jax.random.normal(jax.random.key(0), (1, 7, 6))
    variables = init(mha, x, decode=True)
    params = {"params": variables["params"]}
    true, weights = apply(mha, params, x, mask=masks.Causal(), return_weights=True)
    assert (weights[..., 1::2] == 0).all() and (weights[0, :, 6, ::2] > 0).all()
    found = []
    for tokens in (x[:, :3], x[:, 3:4], x[:, 4:]):
        (y, now), cache = apply(
            mha, variables, tokens, decode=True, return_weights=True, mutable=["cache"]
        )
        variables = params | cache
        found.append((y, now))
    whole, all_weights = (jnp.concatenate(part, axis=-2) for part in zip(*found, strict=True))
    np.testing.assert_allclose(whole, true, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(all_weights, weights, rtol=1e-5, atol=1e-6)
