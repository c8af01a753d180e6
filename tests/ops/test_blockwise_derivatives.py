"""Second derivatives of the blockwise engine: forward over reverse; what reverse mode refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.named import additive_attention, dot_product_attention

pytestmark = pytest.mark.usefixtures("x64")
KV = jax.random.normal(jax.random.key(0), (2, 13, 1, 5))
Q, DIRECTION = jax.random.normal(jax.random.key(1), (2, 11, 1, 5))


def loss(q, mask, implementation):
    k, v = KV.astype(q.dtype)
    return jnp.sin(dot_product_attention(q, k, v, mask=mask, implementation=implementation)).sum()


def gradient(mask, implementation):
    return jax.grad(functools.partial(loss, mask=mask, implementation=implementation))


@jax.jit
def hessian_times_direction(q, direction):
    """Forward over reverse, under `vmap` too, as `jax.hessian` maps it; dense and blockwise."""

    def of(implementation):
        found = gradient(masks.Causal(2), implementation)
        return jax.vmap(lambda d: jax.jvp(found, (q,), (d,))[1])(direction)

    return of("dense"), of("blockwise")


def test_forward_over_reverse_is_the_dense_one():
    q, direction = (x.astype(jnp.float64) for x in (Q, DIRECTION))
    want, got = hessian_times_direction(q, jnp.stack([direction, q]))
    assert np.abs(want).max() > 1e-2
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_reverse_over_reverse_under_a_mask_is_refused():
    """Also where only the loss of the inner pass is read; else it is on the page of refusals."""

    def outer(q):
        f = functools.partial(loss, mask=masks.Causal(), implementation="blockwise")
        return jax.value_and_grad(f)(q)[0]

    with pytest.raises(NotImplementedError, match='got grad of grad .set implementation="dense"'):
        jax.eval_shape(jax.grad(outer), Q)


def test_the_additive_score_has_second_derivatives_by_reverse_over_reverse_alone():
    q, direction = (x.astype(jnp.float64) for x in (Q, DIRECTION))
    k, v = KV.astype(jnp.float64)
    w = jnp.linspace(-1, 1, 5)

    def gradient(implementation):
        def loss(q):
            return jnp.sin(additive_attention(q, k, v, w, implementation=implementation)).sum()

        return jax.grad(loss)

    def second(implementation):
        return jax.jit(jax.grad(lambda q: jnp.vdot(gradient(implementation)(q), direction)))(q)

    got, first = second("dense"), jax.jit(gradient("dense"))
    want = (first(q + 1e-5 * direction) - first(q - 1e-5 * direction)) / 2e-5
    assert np.abs(want).max() > 1e-2
    np.testing.assert_allclose(got, want, atol=1e-8)
    np.testing.assert_allclose(second("blockwise"), got, rtol=1e-10, atol=1e-12)
    for once in (first, jax.jit(gradient("blockwise"))):
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jit(lambda q, once=once: jax.jvp(once, (q,), (direction,))).lower(q)
