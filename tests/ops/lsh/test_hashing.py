import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab import scores
from attnlab.ops import routes
from attnlab.ops.lsh import hashing
from attnlab.ops.lsh.order import bucket_limit
from attnlab.ops.lsh.running_mean import RunningMean

HEADS, WIDTH, ROUNDS, LENGTH = 3, 11, 2, 101


hash_buckets = jax.jit(hashing.hash_buckets)
running_center = jax.jit(hashing.running_center)


def rotations(num_buckets, *, rounds=ROUNDS, shared=False):
    """As `make_rotations` makes them; NumPy draws them without compiling anything."""
    rng = np.random.default_rng(7)
    factors = hashing.factorize(num_buckets) if isinstance(num_buckets, int) else num_buckets
    shapes = [(1 if shared else HEADS, rounds, factor // 2, WIDTH) for factor in factors]
    return hashing.Rotations(tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def make_rotations(num_buckets, **changes):
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "num_hashes": ROUNDS} | changes
    return hashing.make_rotations(jax.random.key(7), num_buckets=num_buckets, **sizes)


def activations(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, LENGTH, HEADS, WIDTH)).astype("f")


def published_hash(x, made):
    """The paper's formula and Trax's mixed radix, with the concatenation, in float64."""
    batch, length, heads, _ = x.shape
    buckets = np.zeros((batch, made.num_hashes, length, heads), int)
    for b, r, n in np.ndindex(batch, made.num_hashes, heads):
        radix = 1
        for factor in made.factors:
            rotation = np.asarray(factor, np.float64)[min(n, factor.shape[0] - 1), r]
            rotated = np.asarray(x[b, :, n], np.float64) @ rotation.T
            digit = np.argmax(np.concatenate([rotated, -rotated], axis=-1), axis=-1)
            buckets[b, r, :, n] += radix * digit
            radix *= 2 * rotation.shape[0]
    return buckets


@pytest.mark.parametrize("num_buckets", [2, 14, 128, (4, 6), (2, 2, 10)])
@pytest.mark.parametrize("shared", [False, True])
def test_hash_is_the_published_formula(num_buckets, shared):
    made, x = rotations(num_buckets, shared=shared), activations()
    buckets = hash_buckets(x, made)
    assert buckets.dtype == jnp.int32
    assert made.num_buckets == math.prod(np.atleast_1d(num_buckets))
    np.testing.assert_array_equal(buckets, published_hash(x, made))


def test_one_bucket_holds_every_token():
    made = make_rotations(1)
    assert (made.num_buckets, made.num_hashes) == (1, ROUNDS)
    buckets = hash_buckets(activations(), made)
    assert buckets.dtype == jnp.int32
    np.testing.assert_array_equal(buckets, np.zeros((2, ROUNDS, LENGTH, HEADS)))


@given(st.integers(1, 3000).map(lambda n: 2 * n))
def test_factors_are_even_and_small_if_that_can_be(num_buckets):
    factors = hashing.factorize(num_buckets)
    assert math.prod(factors) == num_buckets
    assert all(factor % 2 == 0 for factor in factors)
    if max(factors) > 64:  # nothing more can be split off
        odd_part = num_buckets // (num_buckets & -num_buckets)
        assert num_buckets // odd_part == 2 ** len(factors) or max(factors) > 64
        assert num_buckets % 2 ** (len(factors) + 1) != 0


@given(st.integers(1, 10**7), st.integers(1, 300))
def test_default_number_of_buckets_is_the_papers_or_a_little_more(length, chunk_size):
    num_buckets = hashing.default_num_buckets(length, chunk_size)
    wanted = 2 * math.ceil(length / chunk_size)
    limit = bucket_limit(length + chunk_size)
    assert num_buckets <= limit
    if wanted <= limit:
        assert min(wanted, limit) <= num_buckets <= 1.1 * wanted + 2
    else:
        assert num_buckets > limit / 2
    assert max(hashing.factorize(num_buckets)) <= 64


def test_a_million_tokens_are_hashed_and_sorted_by_default():
    x = jax.ShapeDtypeStruct((1, 2**20, 1, 4), jnp.float32)
    assert jax.eval_shape(lambda x: routes.LSH(2)(scores.Dot(), x, x, x), x).shape == x.shape


@pytest.mark.parametrize("queries", [2**19, 2**20])
def test_as_many_buckets_as_are_sorted_with_queries_beside_the_keys(queries):
    """Under jit ids that cannot be sorted are NaN, which nobody would expect by default."""
    length = 2**19
    number = hashing.default_num_buckets(length, 64, queries)
    assert number <= bucket_limit(length + queries) < 4 * number
    q, k = (jax.ShapeDtypeStruct((n, HEADS, WIDTH), jnp.float32) for n in (queries, length))
    route = routes.LSH(shared_qk=False, num_buckets=2**12, num_hashes=1)
    with pytest.raises(ValueError, match="32-bit sort key: .* got num_buckets=4096 .give fewer"):
        jax.eval_shape(lambda q, k: route(scores.Dot(), q, k, k), q, k)


def test_rotations_are_gaussian_and_more_rounds_keep_the_first_ones():
    few, many = (make_rotations(128, num_hashes=rounds) for rounds in (2, 5))
    assert [factor.shape for factor in many.factors] == [(3, 5, 4, 11), (3, 5, 8, 11)]
    assert few.num_buckets == many.num_buckets == 128 and many.num_hashes == 5
    for first, all_rounds in zip(few.factors, many.factors, strict=True):
        np.testing.assert_array_equal(first, all_rounds[:, :2])
    draws = np.concatenate([factor.ravel() for factor in many.factors])
    assert len(np.unique(draws)) == draws.size
    assert abs(draws.mean()) < 0.1 and abs(draws.std() - 1) < 0.05
    for same in (np.int64(128), (np.int64(8), np.int32(16)), np.array([8, 16])):
        other = make_rotations(same, num_hashes=np.int32(2))
        jax.tree.map(np.testing.assert_array_equal, few, other)
    sizes = {"num_hashes": 2, "num_buckets": 8, "chunk_size": 4}
    from_numpy = routes.LSH(**{name: np.int64(size) for name, size in sizes.items()})
    assert from_numpy == routes.LSH(**sizes) and type(from_numpy.chunk_size) is int
    shared = jax.eval_shape(lambda: make_rotations((6, 4), shared=True))
    assert [factor.shape for factor in shared.factors] == [(1, 2, 3, 11), (1, 2, 2, 11)]


def test_a_token_hashes_alike_alone_and_in_company():
    made, x = rotations((8, 10)), activations()
    together = jax.jit(hash_buckets)(x, made)
    alone = jax.jit(hash_buckets)(x[:, 17:18], made)
    np.testing.assert_array_equal(alone, together[:, :, 17:18])


def test_no_gradient_and_any_batch():
    made, x = rotations(16), activations()
    gradient = jax.jit(
        jax.grad(lambda x: hash_buckets(x, made).astype(jnp.float32).sum() + x.sum())
    )
    np.testing.assert_array_equal(gradient(x), np.ones(x.shape))
    buckets = hash_buckets(x, made)
    np.testing.assert_array_equal(hash_buckets(x[None], made), buckets[None])
    np.testing.assert_array_equal(hash_buckets(x[1], made), buckets[1])


def test_a_row_that_is_not_finite_gets_some_bucket():
    x = np.array(activations())
    x[0, 5], x[0, 6] = np.nan, 0
    buckets = hash_buckets(x, rotations((4, 6)))
    assert buckets.min() >= 0 and buckets.max() < 24


def test_heads_that_share_rotations_hash_alike_and_others_do_not():
    x = activations()
    x = np.broadcast_to(x[:, :, :1], x.shape)
    own, shared = (
        np.asarray(hash_buckets(x, rotations(16, shared=flag))) for flag in (False, True)
    )
    np.testing.assert_array_equal(shared[..., 0], shared[..., 1])
    assert (own[..., 0] != own[..., 1]).mean() > 0.5
    assert (own[:, 0] != own[:, 1]).mean() > 0.5


def test_centering_undoes_a_common_mean():
    made, x = rotations(32), activations()
    mean = np.full((1, 1, HEADS, WIDTH), 20, "f")

    def used(**options):
        return len(np.unique(hash_buckets(x + mean, made, **options)[0, 0, :, 0]))

    assert used() <= 4
    assert used(center=mean) > 20
    assert used(center=running_center(x + mean)) > 20


def test_what_is_the_center_up_to_rounding_has_no_direction_to_hash():
    made, center = rotations(14), 20 + activations()[:, :1]
    direction = np.sign(activations())
    for size, tie in ((1e-6, True), (1e-3, False)):
        buckets = hash_buckets(center * (1 + size * direction), made, center=center)
        assert (len(np.unique(buckets)) == 1) == tie
    far = np.float32(1e30) * activations()
    huge = hash_buckets(far, made, center=far[:, :1])
    np.testing.assert_array_equal(
        huge[:, :, 1:], hash_buckets(activations(), made, center=activations()[:, :1])[:, :, 1:]
    )


def test_running_center_of_equal_tokens_is_the_token_however_many():
    x = np.repeat(activations()[:, :1], 4001, axis=1)
    x[:, 4000] += 1

    def one(mean, token):
        center, mean = mean.go_on(token[:, None], None)
        return mean, center[:, 0]

    together = running_center(x)
    _, one_by_one = jax.lax.scan(one, RunningMean.empty(x.shape), np.moveaxis(x, 1, 0))
    for center in (np.asarray(together), np.moveaxis(one_by_one, 0, 1)):
        np.testing.assert_array_equal(center[:, :4000], x[:, :4000])
        np.testing.assert_allclose(center[:, 4000] - x[:, 0], 1 / 4001, rtol=1e-3)


def test_running_center_is_the_mean_so_far():
    x, valid = activations(), np.arange(LENGTH)[None] % 3 != np.array([[0], [1]])
    center = np.asarray(running_center(x, valid))
    for b, t in ((0, 0), (0, 1), (0, 50), (1, 0), (1, 50)):
        rows = x[b, : t + 1][valid[b, : t + 1]]
        want = rows.mean(0) if len(rows) else np.zeros_like(x[b, 0])
        np.testing.assert_allclose(center[b, t], want, atol=1e-5)
    np.testing.assert_array_equal(  # what is masked cannot matter
        running_center(np.where(valid[..., None, None], x, np.float32("nan")), valid), center
    )


def test_factors_of_two_are_the_signs_at_random_planes():
    made, x = rotations((2, 2, 2), rounds=1, shared=True), activations()
    planes = np.stack([np.asarray(factor)[0, 0, 0] for factor in made.factors])
    bits = np.asarray(x) @ planes.T < 0
    found = np.asarray(hash_buckets(x, made))[:, 0]
    np.testing.assert_array_equal(found, bits @ [1, 2, 4])
    assert len(np.unique(found)) > 4
