"""The gallery of attention of one's own: each is its paper's equation, in float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import masks, testing
from attnlab.mechanisms import own
from attnlab.runs.errors import Invalid
from experiments.examples import decay as decay_file

HEADS, WIDTH, LENGTH = 2, 5, 11


def softmax(logits, seen):
    """Over the visible keys; 0 where there is none."""
    weights = np.exp(logits - logits.max()) * seen
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


def scaled(q, k):
    return np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])


def mean(weights, v):
    return np.einsum("bnts,bsnd->btnd", weights, v)


def distance(logits):
    """i − j, [T, S]."""
    return np.arange(logits.shape[-2])[:, None] - np.arange(logits.shape[-1])


def decay(q, k, v, seen, params):
    logits = scaled(q, k)
    return mean(seen * 0.8 ** np.maximum(distance(logits), 0) * logits, v)


def sink_window(q, k, v, seen, params):
    logits = scaled(q, k)
    near = (distance(logits) < 3) | (np.arange(logits.shape[-1]) < 2)
    return mean(softmax(logits, seen & near), v)


def alibi(q, k, v, seen, params):
    logits = scaled(q, k)
    slopes = np.array([1 / 16, 1 / 256])[:, None, None]
    return mean(softmax(logits - slopes * np.abs(distance(logits)), seen), v)


def differential(q, k, v, seen, params):
    (q1, k1), (q2, k2) = params["lambda"]
    (first, second) = (np.exp(q1 @ k1), np.exp(q2 @ k2))
    one, other = (softmax(scaled(q[..., i::2], k[..., i::2]), seen) for i in (0, 1))
    context = mean(one - (first - second + 0.8) * other, v)
    size = np.sqrt((context**2).mean(-1, keepdims=True) + 1e-6)
    return (1 - 0.8) * params["norm"]["scale"] * context / size


def top_k(q, k, v, seen, params):
    logits = np.where(seen, scaled(q, k), -np.inf)
    top = logits >= np.sort(logits)[..., -3][..., None]
    return mean(softmax(scaled(q, k), seen & top), v)


def learned_hash(q, k, v, seen, params):
    def hashed(x):
        logits = np.einsum("blnh,nhm->blnm", x, params["planes"])
        probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return probability.argmax(-1), probability.max(-1, keepdims=True)

    (of_q, gate_q), (of_k, gate_k) = hashed(q), hashed(k)
    same = np.moveaxis(of_q, 1, 2)[..., None] == np.moveaxis(of_k, 1, 2)[:, :, None]
    unit = k / np.sqrt((k**2).mean(-1, keepdims=True) + 1e-6) / np.sqrt(WIDTH)
    logits = np.einsum("btnh,bsnh->bnts", q, unit)
    return gate_q * mean(softmax(logits, seen & same), gate_k * v)


EQUATIONS = {
    "decay.py:decay(rate=0.8, chunk=4)": decay,
    "sink_window.py:SinkWindow(sinks=2, size=3)": sink_window,
    "alibi.py:Alibi": alibi,
    "differential.py:Differential": differential,
    "top_k.py:TopK(size=3)": top_k,
    "learned_hash.py:LearnedHash(num_buckets=3, chunk_size=16)": learned_hash,
}
EVERY = pytest.mark.parametrize("name", EQUATIONS)
VISIBLE = np.ones((3, LENGTH), bool)  # padding nowhere, in front and between, everywhere
VISIBLE[1, [0, 1, 5]] = VISIBLE[2] = False


def in_gallery(name):
    return f"experiments/examples/{name}"


def defined(context, params, x):
    """The layer around a context: projections of the heads before and after it."""
    q, k, v = (
        np.einsum("ble,enh->blnh", x, params[name]["kernel"]) + params[name]["bias"]
        for name in ("query", "key", "value")
    )
    seen = VISIBLE[:, None, None] & np.tril(np.ones((LENGTH, LENGTH), bool))
    out = params["out"]
    return np.einsum("btnd,nde->bte", context(q, k, v, seen, params), out["kernel"]) + out["bias"]


@functools.cache
def layer(name):
    """(parameters, input) in float64, and a compiled function of these and of a direction.

    It returns the output, and the slope of a weighted sum of it in that direction.
    """
    module = own.load(in_gallery(name)).in_place_of(attnlab.MultiHeadAttention(HEADS))
    random = np.random.default_rng(0)
    x = random.normal(size=(3, LENGTH, HEADS * WIDTH))
    params = module.init(jax.random.key(0), jnp.asarray(x, jnp.float32))["params"]
    assert params["query"]["kernel"].shape[1:] == (HEADS, WIDTH)
    params = jax.tree.map(lambda p: np.asarray(p, np.float64) + 0.1, params)
    mask = masks.Causal() & masks.from_padding(VISIBLE)

    @jax.jit
    def run(point, direction, weights):
        y, pull_back = jax.vjp(lambda p, x: module.apply({"params": p}, x, mask=mask), *point)
        slopes = jax.tree.map(lambda g, d: jnp.sum(g * d), pull_back(weights), direction)
        return y, jax.tree.reduce(jnp.add, slopes)

    def in_float32(point, direction, weights):
        given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (point, direction, weights))
        return jax.tree.map(np.asarray, run(*given))

    return (params, x), in_float32


def normal_like(tree, seed=1):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: random.normal(size=x.shape), tree)


@EVERY
def test_it_is_its_equation_and_so_is_its_gradient(name):
    point, run = layer(name)
    direction, weights = normal_like(point), normal_like(point[1], seed=2)
    y, slope = run(point, direction, weights)
    wanted = defined(EQUATIONS[name], *point)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    ahead, behind = (
        defined(EQUATIONS[name], *jax.tree.map(lambda p, d, s=s: p + s * d, point, direction))
        for s in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(slope, np.sum(weights * (ahead - behind)) / 2e-6, rtol=1e-3)


@EVERY
def test_neither_the_future_nor_padding_changes_a_bit(name):
    (params, x), run = layer(name)
    direction, weights = normal_like((params, x)), normal_like(x, seed=2)
    changed, of_past = x.copy(), VISIBLE & (np.arange(LENGTH) < 7)
    changed[~of_past] = -1e6
    past = of_past[..., None]
    in_past = direction[0], direction[1] * past
    y, slope = run((params, x), in_past, weights * past)
    changed_y, changed_slope = run((params, changed), in_past, weights * past)
    np.testing.assert_array_equal(changed_y[of_past], y[of_past])
    assert changed_slope == slope != 0
    np.testing.assert_array_equal(y[2] - y[2, :1], 0)  # what sees nothing has the bias alone
    np.testing.assert_allclose(y[2, 0], params["out"]["bias"], rtol=1e-6)


@EVERY
@pytest.mark.slow
def test_it_keeps_the_contracts(name):
    for contract in (testing.causal, testing.hidden_keys, testing.empty_rows, testing.decoding):
        assert contract(in_gallery(name)) is None


def arrays(num_queries, num_keys):
    shapes = (3, num_queries, 4, 5), (3, num_keys, 2, 5), (3, num_keys, 2, 3)
    random = np.random.default_rng(1)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def test_decay_with_queries_that_stand_anywhere_among_keys():
    """T ≠ S, another first position in each example, before the first key and beyond the last."""
    q, k, v = arrays(7, 9)
    first = np.array([0, -3, 6])
    ours = decay_file.decay(q, k, v, mask=masks.Causal(first), rate=0.8, chunk=4)
    distances = first[:, None, None] + np.arange(7)[:, None] - np.arange(9)
    faded = np.where(distances >= 0, 0.8 ** np.maximum(distances, 0), 0)[:, None]
    k, v = (np.repeat(x, 2, axis=-2) for x in (k, v))
    np.testing.assert_allclose(ours, mean(faded * scaled(q, k), v), rtol=1e-4, atol=1e-5)


def test_decay_is_linear_in_memory():
    def needed(length):
        def loss(q, k, v):
            return jnp.sum(decay_file.decay(q, k, v, mask=masks.Causal()) ** 2)

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays(length, length))
        return compiled.compile().memory_analysis().temp_size_in_bytes

    assert needed(4096) < 2.2 * needed(2048)


def test_decay_refuses_a_mask_of_pairs():
    with pytest.raises(NotImplementedError, match="hides keys from all queries or from none"):
        decay_file.decay(*arrays(7, 7), mask=masks.Window(2, 0))


def test_top_k_has_k_weights_a_query():
    q, k, _ = arrays(7, 9)
    route = own.load(in_gallery("top_k.py:TopK(size=3)")).value
    weights = route.weights(attnlab.scores.Dot(), q, k, mask=masks.Causal(2))
    np.testing.assert_array_equal((weights > 0).sum(-1)[0, 0], 3)


def test_an_argument_that_does_not_fit_is_one_line():
    with pytest.raises(Invalid, match="it cannot be made of these arguments"):
        own.load(in_gallery("top_k.py:TopK(width=3)"))
