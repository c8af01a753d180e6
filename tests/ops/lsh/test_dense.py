"""LSH attention computed densely: what `test_attention` and `test_cross` do not see of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.dense import softmax_times
from attnlab.ops.lsh.options import STRICT
from attnlab.ops.lsh.order import sort_rounds
from attnlab.ops.lsh.rounds import attend_some_rounds
from attnlab.ops.lsh.rows import CallSettings, unit_keys
from tests.ops.lsh.plain import BATCH, CHUNK, HEADS, ROUNDS, counts_of, inputs


def test_a_pair_that_counts_twice_weighs_as_two_keys():
    got = jax.jit(softmax_times)(np.array([[0.3, -1.0, 2.0]], "f"), np.array([[2, 1, 0]]))
    weights = np.exp([0.3, 0.3, -1.0])
    one, two, other = weights / weights.sum()
    np.testing.assert_allclose(got, [[one + two, other, 0]], rtol=1e-6)


def test_the_log_sum_exp_of_the_rounds_has_its_gradient(x64):
    """By it devices that share the rounds of a head merge what each found."""
    qk, v, buckets = inputs(length=CHUNK * 3)
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)
    alone = ~times.any(-1)  # [B, N, L]
    settings = CallSettings(
        STRICT.geometry(CHUNK, True, 3 * CHUNK), STRICT.key_norm, 0.0, None, None
    )
    cotangent = np.cos(np.arange(alone.size)).reshape(alone.shape)
    seeds = np.zeros((BATCH * HEADS, 2), np.uint32)

    def by_rounds(qk):
        # [B, R, L, N] to [B, N, R, L]
        order = sort_rounds(buckets.transpose(0, 3, 1, 2), None, None, settings.geometry)
        given = qk, None, v, jnp.asarray(0.7), order, seeds, jnp.int32(0)
        return attend_some_rounds(settings, ROUNDS, *given)[1].reshape(alone.shape)

    def densely(qk):
        logits = jnp.einsum("bqnh,bknh->bnqk", qk, unit_keys(qk, 0.7, settings.key_norm))
        shown = jnp.where(times > 0, logits, -jnp.inf)
        return jax.nn.logsumexp(jnp.where(alone[..., None], 0, shown), axis=-1)

    def value_and_gradient(lse):
        def weighed(qk):
            return jnp.vdot(jnp.where(alone, 0, lse(qk)), cotangent)

        return jax.jit(jax.value_and_grad(weighed))(qk)

    for got, want in zip(*map(value_and_gradient, (by_rounds, densely)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-10)


@pytest.mark.slow
def test_is_taken_for_short_inputs_and_sorting_for_long_ones():
    """By what is compiled: sorted attention loops over its rounds, dense attention does not."""

    def way(length, chunk_size, **options):
        qk = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, 2, length, 1), jnp.int32)
        attend = functools.partial(lsh_attention, chunk_size=chunk_size, **options)
        text = str(jax.make_jaxpr(attend)(qk, qk, buckets))
        return "dense" if f"{length},{length}" in text else "sorted"

    assert way(32, 8) == "dense"  # 32 · 32 pairs, as many as 2 rounds of 2 chunks of 8 a query
    assert way(40, 8) == "sorted"
    assert way(40, 8, implementation="dense") == "dense"
    assert way(32, 8, implementation="sorted") == "sorted"
    assert way(32, 8, rows_at_once=1) == "sorted"
    assert way(512, 256) == "dense"
    assert way(520, 260) == "sorted"
