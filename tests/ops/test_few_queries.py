"""Few queries over many keys, as while decoding: what the reference computes, in little memory.

One query of a head goes a way of its own (`one_query`), over a short cache and a long one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import biases, masks, scores
from tests.trees import assert_close

KEYS = 2053  # beyond what is dense by default; no multiple of a block
LAST = KEYS - 3
PLACE = np.arange(KEYS)


def arrays(queries=3, keys=KEYS, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = (2, queries, 6, 5), (2, keys, 3, 5), (2, keys, 3, 7)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def hidden(queries, keys):
    """Masks and biases by name, of so many queries and keys."""
    place, last = np.arange(keys), keys - queries
    of_head = (place[None] + np.arange(6)[:, None]) % 4 > 1
    return {
        "nothing": {},
        "the future": {"mask": masks.Causal(last // 2)},
        "all but a window": {"mask": masks.Causal(last) & masks.Window(9, 0, q_offset=last)},
        "padding": {"mask": masks.Padding(jnp.array([keys, keys // 7 + 1]))},
        "padding, all of it": {"mask": masks.Padding(jnp.array([0, keys // 2]))},
        "two of three": {"mask": jnp.asarray(place % 3 == 0)[None, None, None]},
        "others of each head": {"mask": jnp.asarray(of_head)[None, :, None]},
        "what is far": {"mask": masks.Causal(last), "bias": biases.alibi(6, queries, keys)},
        "by numbers": {"bias": jnp.asarray(np.sin(place), jnp.float32)[None, None, None]},
    }


def attend(way, *operands, score=None, **options):
    return attnlab.attention(score or scores.Dot(), *operands, **options, implementation=way)


@pytest.fixture(autouse=True)
def few_queries_alone(monkeypatch):
    """The default, here, is what is tested."""
    monkeypatch.setattr(
        "attnlab.ops.blockwise.attend", lambda *_, **__: pytest.fail("blockwise was asked")
    )


def assert_is_the_reference(score, operands, every_options):
    @jax.jit
    def both(*operands):
        return [
            [attend(way, *operands, score=score, **options) for way in (None, "dense")]
            for options in every_options
        ]

    for ours, reference in both(*operands):
        np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("queries", "keys", "scale"),
    [(1, 1, None), (1, 37, None), (1, 37, 1.0), (1, 37, 0.3), (1, KEYS, 0.3), (3, KEYS, None)],
)
def test_is_the_reference(queries, keys, scale):
    options = hidden(queries, keys).values()
    assert_is_the_reference(scores.Dot(scale), arrays(queries, keys), options)


@pytest.mark.parametrize(
    "score",
    [
        scores.Cosine(3.0),
        scores.Additive(jnp.linspace(-1, 1, 5)),
        scores.General(jnp.linspace(-1, 1, 6 * 5 * 5).reshape(6, 5, 5)),
    ],
    ids=["cosine", "additive", "general"],
)
def test_other_scores(score):
    """Masks and biases do not ask what the score is."""
    assert_is_the_reference(score, arrays(), [hidden(3, KEYS)["what is far"]])


def test_bounds_of_two_integer_types_are_one_range(x64):
    operands = arrays(dtype=jnp.float64)
    mask = masks.Padding(jnp.array([KEYS, 300])) & masks.Window(41, None, q_offset=LAST)
    ours, reference = jax.jit(lambda *x: [attend(way, *x, mask=mask) for way in (None, "dense")])(
        *operands
    )
    np.testing.assert_allclose(ours, reference, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("queries", "keys"), [(1, 37), (1, KEYS), (3, KEYS)])
@pytest.mark.parametrize("dtype, tolerance", [(jnp.bfloat16, 1e-2), (jnp.float64, 1e-12)])
def test_other_dtypes(queries, keys, dtype, tolerance, x64):
    operands = arrays(queries, keys, dtype)
    options = {"mask": masks.Causal(keys - queries - 1), "score": scores.Dot(0.3)}
    ours = jax.jit(lambda *x: attend(None, *x, **options))(*operands)
    wide = (x.astype(jnp.float64) for x in operands)
    reference = jax.jit(lambda *x: attend("dense", *x, **options))(*wide)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, reference, rtol=tolerance, atol=tolerance)


def test_derivatives_of_one_query_in_both_modes_and_under_vmap():
    operands = arrays(1, 37)
    tangents = [jnp.cos(x) for x in operands]

    def loss(way):
        def of_example(*operands):
            return jnp.sin(attend(way, *operands, mask=masks.Causal(20))).sum()

        return lambda *x: jax.vmap(of_example)(*x).sum()

    def derivatives(way):
        gradient = jax.grad(loss(way), (0, 1, 2))
        return jax.jvp(gradient, operands, tangents)

    ours, reference = jax.jit(lambda: (derivatives(None), derivatives("dense")))()
    assert_close(ours, reference, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_engine(monkeypatch):
    monkeypatch.undo()
    mask = masks.Causal(LAST) & masks.Padding(jnp.array([KEYS, 300]))

    def gradient(way):
        def loss(*operands):
            return jnp.sum(jnp.sin(attend(way, *operands, mask=mask)))

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays(queries=2))

    jax.tree.map(np.testing.assert_array_equal, gradient(None), gradient("blockwise"))


@pytest.mark.parametrize("in_axes", [(0, 0, 0, 0), (0, None, None, 0)], ids=["all", "queries"])
def test_under_vmap_and_remat(in_axes):
    q, k, v = arrays(queries=1)  # an example at a time; without its axis of keys, one cache for all
    k, v = (x if axis == 0 else x[0] for x, axis in zip((k, v), in_axes[1:3], strict=True))

    def mapped(way):
        def one(q, k, v, offset):
            return attend(way, q, k, v, mask=masks.Causal(offset))

        return jax.jit(jax.vmap(jax.checkpoint(one), in_axes))(q, k, v, jnp.array([5, LAST]))

    np.testing.assert_allclose(mapped(None), mapped("dense"), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("keys", [2048, KEYS])
def test_of_one_query_no_copy_of_the_keys_is_made(keys):
    q, k, v = (jnp.tile(x, 8) for x in arrays(1, keys))

    def temporaries(way):
        compiled = jax.jit(lambda *x: attend(way, *x)).lower(q, k, v).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(None) < k.nbytes / 2 < temporaries("dense")


def test_what_is_hidden_counts_for_nothing_however_large():
    q, k, v = arrays(1, 37)
    context = jax.jit(lambda *x: attend(None, *x, mask=masks.Causal(20)))
    spoiled = (x.at[:, 30].set(1e30) for x in (k, v))
    np.testing.assert_array_equal(context(q, *spoiled), context(q, k, v))


def test_what_is_hidden_is_not_even_read():
    q, *kv = map(np.asarray, arrays(queries=1))
    near = masks.Window(9, 0, q_offset=1000)

    def spoiled(place, value):
        at = np.arange(KEYS)[:, None, None] == place
        return [np.where(at, np.float32(value), x) for x in kv]

    attend = jax.jit(attnlab.dot_product_attention)
    context = attend(q, *kv, mask=near)
    for place in (0, 700, KEYS - 1):
        np.testing.assert_array_equal(attend(q, *spoiled(place, np.nan), mask=near), context)
    mask = near & jnp.asarray(PLACE != 995)[None, None, None]
    context = attend(q, *kv, mask=mask)
    np.testing.assert_array_equal(attend(q, *spoiled(995, 1e30), mask=mask), context)


class Scaled(scores.Dot):
    def prepare(self, q, k, *, precision=None):  # of all keys together
        return super().prepare(q, k / k.std(-2, keepdims=True))


@pytest.mark.parametrize("keys", [37, KEYS])
@pytest.mark.parametrize(
    "options",
    [
        {"score": Scaled()},
        {"score": scores.Location(jnp.sin(jnp.arange(45.0)).reshape(5, 9))},
        {"dropout_rate": 0.5, "dropout_key": jax.random.key(0)},
    ],
    ids=["keys prepared together", "no keys", "dropout"],
)
def test_what_it_does_not_serve(keys, options, monkeypatch):
    """Another engine takes it, with the reference's numbers."""
    monkeypatch.undo()
    q, k, v = arrays(1, keys)
    ours, reference = jax.jit(lambda *x: [attend(way, *x, **options) for way in (None, "dense")])(
        q, 3 * k, v
    )
    np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=2e-6)
