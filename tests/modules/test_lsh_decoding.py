"""Decoding by hash in the module: the causal forward, a token or a prompt at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import LSHOptions, LSHSelfAttention, MultiHeadAttention, masks, routes
from tests.daily import daily
from tests.modules.reference import init
from tests.nnx.as_linen import AsLinen

pytestmark = pytest.mark.usefixtures("x64")

B, L, D, N, C = 3, 23, 8, 4, 4
PROMPT = 2 * C + 3
TOKEN_BY_TOKEN = (1,) * L
PROMPT_FIRST = (PROMPT, *(1,) * (L - PROMPT))
ALL = jnp.ones((B, 1, 1, L), bool)
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def route(**fields):
    return routes.LSH(**({"num_hashes": 3, "num_buckets": 4, "chunk_size": C} | fields))


ROUTE = route()


def lsh(route=ROUTE, **options):
    return LSHSelfAttention(N, **({"route": route, "param_dtype": jnp.float64} | options))


def sequence(seed=0):
    """With a mean that all tokens share, so that centering changes buckets."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, L, D)) + 0.5)


def start(module):
    """What the module keeps, and apart from it a cache of zeros for L tokens."""
    variables = init(module, sequence(), decode=True)
    if "hash_stats" in variables:
        center = np.random.default_rng(1).normal(size=(N, D // N))
        variables["hash_stats"] = {"center": jnp.asarray(center, jnp.float32)}
    rest = {name: tree for name, tree in variables.items() if name != "cache"}
    return rest, variables["cache"]


@functools.partial(jax.jit, static_argnames=("module",))
def forward(module, rest, x, mask=ALL, rngs=None):
    return module.apply(rest, x, mask=masks.combine(masks.Causal(), mask), rngs=rngs)


@functools.partial(jax.jit, static_argnames=("module",))
def step(module, rest, cache, x, mask=ALL, rngs=None):
    variables = {**rest, "cache": cache}
    return module.apply(variables, x, mask=mask, decode=True, mutable=["cache"], rngs=rngs)


def decode(module, rest, cache, x, pieces, **options):
    """The outputs of consecutive pieces, joined, and the cache at the end."""
    outputs, first, compiled = [], 0, step._cache_size()
    for size in pieces:
        y, updated = step(module, rest, cache, x[:, first : first + size], **options)
        cache = updated["cache"]
        outputs.append(y)
        first += size
    assert step._cache_size() - compiled <= len(set(pieces)), "once for each length"
    return jnp.concatenate(outputs, axis=1), cache


CONFIGURATIONS = {
    "one_bucket": lsh(route(num_hashes=1, num_buckets=1, chunk_size=L)),
    "one_bucket_window": lsh(route(num_hashes=2, num_buckets=1)),
    "turned": lsh(num_kv_heads=2, rotary=True, normalize_qk=True),
    "running_center": lsh(route(centering="running", shared_rotations=True)),
    "learned_center": MultiHeadAttention(
        N,
        route=route(
            centering="learned",
            hash_before_rotary=True,
            num_buckets=None,
            options=LSHOptions(union=False, window=3),
        ),
        rotary=True,
        param_dtype=jnp.float64,
    ),
}

CONFIGURATIONS |= {f"nnx_{name}": AsLinen(module) for name, module in CONFIGURATIONS.items()}


@pytest.mark.parametrize("name", daily(CONFIGURATIONS, "running_center", "nnx_running_center"))
def test_decoding_is_the_causal_forward(name):
    module, x = CONFIGURATIONS[name], sequence()
    rest, cache = start(module)
    true = forward(module, rest, x)
    # Rotary turns in float32, whatever the inputs.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if module.rotary else EXACT
    ends = []
    for pieces in (TOKEN_BY_TOKEN, PROMPT_FIRST, (L,)):
        got, end = decode(module, rest, cache, x, pieces)
        np.testing.assert_allclose(got, true, **tolerance)
        assert end["cache_index"] == L
        ends.append(end["route_state"])
    for state in ends[:2]:  # the last one hashed everything at once, as the forward does
        np.testing.assert_array_equal(state.buckets, ends[2].buckets)
        np.testing.assert_array_equal(state.latest, ends[2].latest)


def test_a_mask_of_heads_alone():
    """In it, queries and keys are axes of 1; there are as many heads as keys in a bucket."""
    module, x = lsh(route(num_hashes=2, num_buckets=2, chunk_size=2)), sequence()
    rest, cache = start(module)
    heads = jnp.arange(N)[:, None, None] != 1
    true = forward(module, rest, x, mask=heads)
    got, _ = decode(module, rest, cache, x, TOKEN_BY_TOKEN, mask=heads)
    np.testing.assert_allclose(got, true, **EXACT)


def test_a_run_of_equal_tokens_is_hashed_alike_in_any_pieces():
    """They are their own running mean; what rounding leaves of the difference has no direction."""
    module, x = CONFIGURATIONS["running_center"], sequence()
    x = x.at[:, : L - 5].set(x[:, :1])
    rest, cache = start(module)
    true = forward(module, rest, x)
    for pieces in (TOKEN_BY_TOKEN, PROMPT_FIRST):
        np.testing.assert_allclose(decode(module, rest, cache, x, pieces)[0], true, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("side", daily(["left", "right", "middle"], "left"))
def test_every_example_is_as_if_it_were_alone_without_its_padding(side):
    """Prompts of different lengths in one batch: no example sees another, or any padding."""
    module, x = CONFIGURATIONS["running_center"], sequence()
    lengths = np.array([PROMPT, 4, 7])[:, None]
    position, missing = np.arange(L), PROMPT - lengths
    first = {"left": 0, "right": lengths, "middle": 2}[side]
    valid = (position < first) | (position >= first + missing)
    rest, cache = start(module)
    garbage, mask = jnp.where(valid[..., None], x, jnp.nan), jnp.asarray(valid)[:, None, None]
    in_front = np.argsort(~valid, axis=1, kind="stable")[..., None]
    front = np.sort(~valid, axis=1) == 0
    moved = np.take_along_axis(np.asarray(garbage), in_front, axis=1)
    alone = np.asarray(forward(module, rest, moved, mask=jnp.asarray(front)[:, None, None]))
    found = [forward(module, rest, garbage, mask=mask)]
    for pieces in (TOKEN_BY_TOKEN, PROMPT_FIRST):
        found.append(decode(module, rest, cache, garbage, pieces, mask=mask)[0])
    for got in found:
        np.testing.assert_array_equal(np.asarray(got)[~valid], 0)
        for row in range(B):
            np.testing.assert_allclose(got[row, valid[row]], alone[row, front[row]], **EXACT)


def test_the_hash_stream_turns_the_rotations_while_decoding_too():
    module, x = lsh(), sequence()
    rest, cache = start(module)
    rngs = {"hash": jax.random.key(5)}
    got, _ = decode(module, rest, cache, x, TOKEN_BY_TOKEN, rngs=rngs)
    np.testing.assert_allclose(got, forward(module, rest, x, rngs=rngs), **EXACT)
    assert np.abs(got - forward(module, rest, x)).max() > 1e-3
