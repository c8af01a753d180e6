"""One query a head, as of a decoder's step: what the reference computes, without moving keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import biases, masks, scores

LENGTHS = (1, 37, 2053)  # of one block at most, and of several
SCALES = {"default": None, "1": 1.0, "0.3": 0.3}


def arrays(keys, dtype=jnp.float32, heads=(6, 3)):
    rng = np.random.default_rng(0)
    shapes = (2, 1, heads[0], 5), (2, keys, heads[1], 5), (2, keys, heads[1], 7)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def hidden(keys):
    """Masks and biases by name, of so many keys."""
    place, last = np.arange(keys), keys - 1
    of_head = (place[None] + np.arange(6)[:, None]) % 4 > 1
    return {
        "nothing": {},
        "the future": {"mask": masks.Causal(last // 2)},
        "all but a window": {"mask": masks.Causal(last) & masks.Window(9, 0, q_offset=last)},
        "padding, all of it": {"mask": masks.Padding(jnp.array([0, keys // 2]))},
        "others of each head": {"mask": jnp.asarray(of_head)[None, :, None]},
        "what is far": {"mask": masks.Causal(last), "bias": biases.alibi(6, 1, keys)},
        "by numbers": {"bias": jnp.asarray(np.sin(place), jnp.float32)[None, None, None]},
    }


def attend(way, *operands, scale=None, **options):
    return attnlab.attention(scores.Dot(scale), *operands, **options, implementation=way)


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("scale", SCALES)
def test_is_the_reference(keys, scale):
    @jax.jit
    def both(*operands):
        return [
            [attend(way, *operands, scale=SCALES[scale], **options) for way in (None, "dense")]
            for options in hidden(keys).values()
        ]

    for ours, reference in both(*arrays(keys)):
        np.testing.assert_allclose(ours, reference, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("keys", LENGTHS[1:])
@pytest.mark.parametrize("dtype, tolerance", [(jnp.bfloat16, 2e-2), (jnp.float64, 1e-12)])
def test_other_dtypes(keys, dtype, tolerance, x64):
    operands, options = arrays(keys, dtype), {"mask": masks.Causal(keys - 2)}
    ours = jax.jit(lambda *x: attend(None, *x, scale=0.3, **options))(*operands)
    wide = (x.astype(jnp.float64) for x in operands)
    reference = jax.jit(lambda *x: attend("dense", *x, scale=0.3, **options))(*wide)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, reference, rtol=tolerance, atol=tolerance)


def test_derivatives_in_both_modes_and_under_vmap():
    operands = arrays(37)
    tangents = [jnp.cos(x) for x in operands]

    def loss(way):
        def of_example(*operands):
            return jnp.sin(attend(way, *operands, mask=masks.Causal(20))).sum()

        return lambda *x: jax.vmap(of_example)(*x).sum()

    def derivatives(way):
        gradient = jax.grad(loss(way), (0, 1, 2))
        return jax.jvp(gradient, operands, tangents)

    ours, reference = jax.jit(lambda: (derivatives(None), derivatives("dense")))()
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), ours, reference
    )


def test_what_is_hidden_counts_for_nothing_however_large():
    q, k, v = arrays(37)
    options = {"mask": masks.Causal(20)}
    context = jax.jit(lambda *x: attend(None, *x, **options))
    spoiled = (x.at[:, 30].set(1e30) for x in (k, v))
    np.testing.assert_array_equal(context(q, *spoiled), context(q, k, v))


def test_no_copy_of_the_keys_is_made():
    q, k, v = (jnp.tile(x, 8) for x in arrays(2048))

    def temporaries(way):
        compiled = jax.jit(lambda *x: attend(way, *x)).lower(q, k, v).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(None) < k.nbytes / 2 < temporaries("dense")


def test_a_subclass_of_the_score_prepares_keys_itself():
    class Centered(scores.Dot):
        def prepare(self, q, k, *, precision=None):
            return super().prepare(q, k - k.mean(-2, keepdims=True))

    q, k, v = arrays(37)
    ours, reference = (
        attnlab.attention(Centered(), q, 3 * k + 1, v, implementation=way)
        for way in (None, "dense")
    )
    np.testing.assert_array_equal(ours, reference)
