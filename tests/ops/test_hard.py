"""Hard attention: what is chosen, and that REINFORCE's mean is the exact gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import attention, attention_weights, hard_attention, masks, routes, scores
from attnlab.ops.blockwise import engine
from tests.trees import assert_close

B, T, S, N, K, H, D = 2, 3, 5, 4, 2, 3, 7
LENGTHS = np.array([S, 0])
# One program each; op by op every operation is compiled.
hard = jax.jit(hard_attention, static_argnames="straight_through")


def arrays(*, batch=B, queries=T, keys=S, num_heads=N, num_kv_heads=K):
    rng = np.random.default_rng(0)
    shapes = (
        (batch, queries, num_heads, H),
        (batch, keys, num_kv_heads, H),
        (batch, keys, num_kv_heads, D),
    )
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@jax.jit
def weights_of(q, k, **options):
    """The soft weights, [*B, T, N, S]."""
    return jnp.moveaxis(attention_weights(scores.Dot(), q, k, **options), -3, -2)


def entropy_of(weights, xp=jnp):
    return -(weights * xp.log(xp.where(weights > 0, weights, 1))).sum(-1)


@pytest.mark.parametrize("sample_key", [None, jax.random.key(3)], ids=["likeliest", "sampled"])
def test_the_context_is_the_value_at_a_place_and_the_rest_is_of_the_weights(sample_key):
    q, k, v = arrays()
    bias = np.linspace(0, 1, S, dtype="f")[None, None, None]
    options = {"mask": masks.Padding(LENGTHS), "bias": bias}
    choice = jax.device_get(hard(q, k, v, sample_key=sample_key, **options))
    assert (choice.place[1] == -1).all(), "no key is visible"
    for x in choice[:1] + choice[2:]:
        assert not x[1].any()
    weights, place = np.asarray(weights_of(q, k, **options)[0]), choice.place[0]
    if sample_key is None:
        np.testing.assert_array_equal(place, weights.argmax(-1))
    else:
        assert (place != weights.argmax(-1)).any()
    of_head = np.repeat(v[0], N // K, axis=1)
    for t, n in np.ndindex(T, N):
        np.testing.assert_array_equal(choice.context[0, t, n], of_head[place[t, n], n])
    log_prob = np.log(np.take_along_axis(weights, place[..., None], -1)[..., 0])
    np.testing.assert_allclose(choice.log_prob[0], log_prob, rtol=1e-5)
    np.testing.assert_allclose(choice.entropy[0], entropy_of(weights, np), rtol=1e-5)


def test_a_visible_nan_is_not_taken_for_nothing():
    """It stands in the second block of keys, which all queries but the first see."""
    q, k, v = arrays(batch=1, keys=311)
    k = np.array(k)
    k[:, 290] = np.nan
    choice = jax.device_get(hard(q, k, v, mask=masks.Causal(289)))
    np.testing.assert_array_equal(choice.place[0, 1:], 290)
    for x in (choice.context, choice.log_prob, choice.entropy):
        assert np.isfinite(x[0, 0]).all() and np.isnan(x[0, 1:]).all()


def test_keys_are_sampled_as_often_as_they_weigh():
    q, k, v = arrays(batch=1, queries=1, num_heads=1, num_kv_heads=1)
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key: hard_attention(q, k, v, sample_key=key).place[0, 0, 0]))
    share = np.bincount(draw(keys), minlength=S) / len(keys)
    weights = np.asarray(weights_of(q, k))[0, 0, 0]
    error = np.sqrt(weights * (1 - weights) / len(keys))
    assert (abs(share - weights) < 4 * error).all(), (share, weights)


def estimates(parameters, reward, keys, **options):
    """The gradient of each sample's surrogate [samples, ...], and the places that it chose."""

    def surrogate(parameters, key):
        q, k, v = parameters
        choice = hard_attention(q, k, v, sample_key=key, mask=masks.Causal(1), **options)
        found = reward(choice.context)
        score_function = jax.lax.stop_gradient(found) * choice.log_prob.sum()
        return found + score_function, choice.place

    return jax.jit(jax.vmap(jax.grad(surrogate, has_aux=True), (None, 0)))(parameters, keys)


def flat(tree):
    return np.concatenate([np.asarray(x).reshape(x.shape[0], -1) for x in tree], -1)


@pytest.mark.usefixtures("x64")
def test_the_estimators_mean_is_the_exact_gradient():
    """Two queries of 3 keys: all pairs of places, weighed by their probabilities; and sampled."""
    parameters = tuple(
        x.astype(jnp.float64)
        for x in arrays(batch=1, queries=2, keys=3, num_heads=1, num_kv_heads=1)
    )

    def reward(context):
        return jnp.sin(context).sum() * jnp.cos(context[0, 0, 0] - context[0, 1, 0]).sum()

    def exact(parameters):
        q, k, v = parameters
        first, second = weights_of(q, k, mask=masks.Causal(1))[0, :, 0]
        return sum(
            first[i] * second[j] * reward(v[:, jnp.array([i, j])])
            for i in range(2)
            for j in range(3)
        )

    value = flat([x[None] for x in jax.device_get(jax.jit(jax.grad(exact))(parameters))])[0]
    grads, places = estimates(parameters, reward, jax.random.split(jax.random.key(0), 3000))
    samples, places = flat(grads), np.asarray(places)[:, 0, :, 0]
    first, second = np.asarray(weights_of(*parameters[:2], mask=masks.Causal(1)))[0, :, 0]
    mean = sum(
        first[i] * second[j] * samples[(places == [i, j]).all(-1)][0]
        for i in range(2)
        for j in range(3)
    )
    np.testing.assert_allclose(mean, value, rtol=1e-9, atol=1e-12)
    error = samples.std(0) / np.sqrt(len(samples))
    assert (abs(samples.mean(0) - value) < 4.5 * error + 1e-12).all()
    assert (abs(value) > 4.5 * error).any(), "the bound must tell the gradient from zero"


def test_entropy_has_its_gradient():
    q, k, v = arrays()
    options = {"mask": masks.Causal(1)}

    @jax.jit
    def both(q, k):
        got = jax.grad(lambda q, k: hard_attention(q, k, v, **options).entropy.sum(), (0, 1))
        true = jax.grad(lambda q, k: entropy_of(weights_of(q, k, **options)).sum(), (0, 1))
        return got(q, k), true(q, k)

    for a, b in zip(*jax.device_get(both(q, k)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert abs(b).max() > 1e-2


def test_straight_through_has_the_gradient_of_the_expected_context():
    q, k, v = arrays()
    key, dcontext = jax.random.key(1), np.cos(np.arange(B * T * N * D, dtype="f"))

    @jax.jit
    def contexts_and_grads(*qkv):
        found = []
        for attend in (
            lambda *x: hard_attention(*x, sample_key=key, straight_through=True).context,
            lambda *x: hard_attention(*x, sample_key=key).context,
            lambda *x: attention(scores.Dot(), *x),
        ):
            context, pull_back = jax.vjp(attend, *qkv)
            found.append((context, pull_back(dcontext.reshape(context.shape))))
        return found

    through, drawn, soft = jax.device_get(contexts_and_grads(q, k, v))
    d_q, d_k, d_v = drawn[1]
    np.testing.assert_array_equal(through[0], drawn[0])
    assert_close(through[1][:2], soft[1][:2], rtol=1e-4, atol=1e-5)
    assert not d_q.any() and not d_k.any()
    np.testing.assert_array_equal(through[1][2], d_v)


def test_an_example_takes_the_expected_context_for_all_of_its_queries():
    q, k, v = arrays(batch=64)
    route = routes.Hard(expected_rate=0.5)
    key = jax.random.key(2)
    choose = jax.jit(route.choose)
    choice = jax.device_get(choose(scores.Dot(), q, k, v, sample_key=key))
    expects = (choice.log_prob == 0).all((1, 2))
    assert 16 < expects.sum() < 48
    np.testing.assert_array_equal(expects, (choice.log_prob == 0).any((1, 2)))
    expected = np.asarray(jax.jit(attention)(scores.Dot(), q, k, v))
    np.testing.assert_allclose(choice.context[expects], expected[expects], rtol=1e-5, atol=1e-6)
    weights = jax.jit(lambda *x: route.weights(*x, sample_key=key, dropout_rate=0.0))(
        scores.Dot(), q, k
    )
    context = np.einsum("bnts,bsnd->btnd", weights, np.repeat(v, N // K, axis=2))
    np.testing.assert_allclose(context, choice.context, rtol=1e-5, atol=1e-6)
    surely = choose(scores.Dot(), q, k, v)
    assert (surely.log_prob < 0).all(), "nothing is expected where nothing is sampled"


def test_what_is_drawn_does_not_depend_on_the_blocks(monkeypatch):
    q, k, v = arrays(queries=17, keys=19)
    found = []
    for block in (512, 8):
        monkeypatch.setattr(engine, "default_block", lambda mask, block=block: block)
        jax.clear_caches()
        found.append(hard(q, k, v, sample_key=jax.random.key(0)))
    np.testing.assert_array_equal(found[0].place, found[1].place)
    np.testing.assert_allclose(found[0].log_prob, found[1].log_prob, rtol=1e-5, atol=1e-6)


def test_entropy_over_blocks_whose_largest_logits_rise():
    """More keys than a block has, the likeliest ones last: what stood before is scaled down."""
    q = np.ones((1, 3, 1, 1), "f")
    k = np.linspace(-4, 4, 600, dtype="f").reshape(1, 600, 1, 1)
    entropy = np.asarray(hard(q, k, k, score=scores.Dot(1.0)).entropy)
    weights = np.exp(k.ravel()) / np.exp(k.ravel()).sum()
    np.testing.assert_allclose(entropy[0, :, 0], entropy_of(weights, np), rtol=1e-5)


def test_half_precision_sums_over_queries_in_float32():
    """Of queries that choose one value, 16 bits would count 256; of 7 blocks' keys 900, not 904."""
    q = jnp.full((1, 7 * 256, 1, 1), 1 + 2**-7, jnp.bfloat16)
    x = jnp.zeros((1, 2, 1, 1), jnp.bfloat16)
    choose = functools.partial(hard_attention, q, score=scores.Dot(1.0))
    of_values = jax.grad(lambda v: choose(x, v).context.astype(jnp.float32).sum())(x)
    assert of_values[0, :, 0, 0].tolist() == [7 * 256, 0]
    of_keys = jax.grad(lambda k: choose(k, x).log_prob.sum())(x)  # half of a query for each
    assert of_keys[0, :, 0, 0].tolist() == [904, -904]
