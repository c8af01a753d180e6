"""Few queries over many keys, as while decoding: what the reference computes, in little memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import biases, masks, scores
from attnlab.ops.blockwise import few_queries
from tests.daily import daily

KEYS = 2053  # beyond what is dense by default; no multiple of a block
LAST = KEYS - 3
PLACE = np.arange(KEYS)

MASKS = {
    "none": None,
    "causal": masks.Causal(LAST),
    "window": masks.Causal(LAST) & masks.Window(41, 0, q_offset=LAST),
    "padding": masks.Padding(jnp.array([KEYS, 300])),
    "nothing": masks.Padding(jnp.array([0, 257])),
    "array": jnp.asarray(PLACE % 3 == 1)[None, None, None],
    "heads": jnp.asarray((PLACE[None] + np.arange(6)[:, None]) % 4 > 1)[None, :, None],
}
BIASES = {
    "none": None,
    "alibi": biases.alibi(6, 3, KEYS),
    "array": jnp.asarray(np.sin(PLACE), jnp.float32)[None, None, None],
}
SCORES = {
    "dot": scores.Dot(),
    "cosine": scores.Cosine(3.0),
    "additive": scores.Additive(jnp.linspace(-1, 1, 5)),
    "general": scores.General(jnp.linspace(-1, 1, 6 * 5 * 5).reshape(6, 5, 5)),
}


def arrays(queries=3, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = (2, queries, 6, 5), (2, KEYS, 3, 5), (2, KEYS, 3, 7)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


@pytest.fixture(autouse=True)
def few_queries_alone(monkeypatch):
    """The default, here, is what is tested."""
    monkeypatch.setattr(
        "attnlab.ops.blockwise.attend", lambda *_, **__: pytest.fail("blockwise was asked")
    )


PARTS = [*((mask, "none") for mask in MASKS), ("causal", "alibi"), ("padding", "array")]


@pytest.mark.parametrize(
    "score, mask, bias",
    daily(
        [(score, *parts) for score in SCORES for parts in PARTS],
        *(("dot", *parts) for parts in PARTS),  # which do not ask what the score is
        *((score, "causal", "alibi") for score in SCORES if score != "dot"),
    ),
)
def test_is_the_reference(score, mask, bias):
    options = {"mask": MASKS[mask], "bias": BIASES[bias]}

    def both(*operands):
        ways = (None, "dense")
        return [
            attnlab.attention(SCORES[score], *operands, **options, implementation=way)
            for way in ways
        ]

    ours, reference = jax.jit(both)(*arrays())
    np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=2e-6)


def test_bounds_of_two_integer_types_are_one_range(x64):
    operands = arrays(dtype=jnp.float64)
    mask = masks.Padding(jnp.array([KEYS, 300])) & masks.Window(41, None, q_offset=LAST)
    attend = jax.jit(attnlab.dot_product_attention, static_argnames="implementation")
    ours, reference = (attend(*operands, mask=mask, implementation=x) for x in (None, "dense"))
    np.testing.assert_allclose(ours, reference, rtol=1e-12, atol=1e-14)


def test_of_one_query_no_copy_of_the_keys_is_made():
    q, k, v = arrays(queries=1)

    def temporaries(way):
        call = jax.jit(lambda *x: attnlab.dot_product_attention(*x, implementation=way))
        return call.lower(q, k, v).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(None) < k.nbytes / 2 < temporaries("dense")


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


def test_the_gradient_is_that_of_the_engine(monkeypatch):
    monkeypatch.undo()
    operands = arrays(queries=2)
    mask = masks.Causal(LAST) & masks.Padding(jnp.array([KEYS, 300]))

    def loss(way, *operands):
        context = attnlab.dot_product_attention(*operands, mask=mask, implementation=way)
        return jnp.sum(jnp.sin(context))

    for ours, theirs in zip(
        *(
            jax.jit(jax.grad(lambda *x, w=way: loss(w, *x), (0, 1, 2)))(*operands)
            for way in (None, "blockwise")
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("in_axes", [(0, 0, 0, 0), (0, None, None, 0)], ids=["all", "queries"])
def test_under_vmap_and_remat(in_axes):
    q, k, v = arrays(queries=1)  # an example at a time; without its axis of keys, one cache for all
    k, v = (x if axis == 0 else x[0] for x, axis in zip((k, v), in_axes[1:3], strict=True))

    def mapped(way):
        def one(q, k, v, offset):
            mask = masks.Causal(offset)
            return attnlab.dot_product_attention(q, k, v, mask=mask, implementation=way)

        return jax.jit(jax.vmap(jax.checkpoint(one), in_axes))(q, k, v, jnp.array([5, LAST]))

    np.testing.assert_allclose(mapped(None), mapped("dense"), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.bfloat16, 1e-2), (jnp.float64, 1e-12)])
def test_other_dtypes(dtype, tolerance, x64):
    operands = arrays(dtype=dtype)
    attend = jax.jit(attnlab.dot_product_attention, static_argnames="implementation")
    ours = attend(*operands, mask=masks.Causal(LAST))
    wide = (x.astype(jnp.float64) for x in operands)
    reference = attend(*wide, mask=masks.Causal(LAST), implementation="dense")
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, reference, rtol=tolerance, atol=tolerance)


@dataclasses.dataclass(frozen=True)
class _Call:
    score: scores.Score
    lengths: tuple[int, int] = (1, KEYS)
    dropout_rate: float = 0.0


class Centered(scores.Dot):
    def prepare(self, q, k, *, precision=None):  # of all keys together
        return super().prepare(q, k - k.mean(-2, keepdims=True))


def test_what_it_does_not_serve():
    assert few_queries.serves(_Call(scores.Dot()))
    assert not few_queries.serves(_Call(scores.Location(jnp.ones((5, 9)))))
    assert not few_queries.serves(_Call(Centered()))
    assert not few_queries.serves(_Call(scores.Dot(), (9, KEYS)))
    assert not few_queries.serves(_Call(scores.Dot(), dropout_rate=0.5))
