"""Masks of a user's own, of `visible` alone: right in every engine, or refused in one line."""

import functools
import itertools
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import MultiHeadAttention, attention, lsh_attention, masks, routes, scores
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.devices.split import over
from attnlab.ops.blockwise import engine
from attnlab.ops.hard import hard_attention
from attnlab.ops.local import local_attention, window_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.quality import hash_quality
from tests import oracle
from tests.daily import daily
from tests.trees import assert_close

B, T, N, K, H, D = 2, 24, 4, 2, 6, 5
ROWS, COLUMNS = np.arange(T)[:, None], np.arange(T)[None, :]
STRIDES = np.array([3, 5])
IDS = np.array([[0] * 9 + [4] * 15, [2, 0, 1] * 8])


class Dilated(masks.Mask):
    """Static: query i sees the keys at distances that are a multiple of `step`, less `left_out`."""

    step: int = flax.struct.field(pytree_node=False, default=3)
    left_out: int = flax.struct.field(pytree_node=False, default=0)

    def visible(self, i, j):
        return (i - j) % self.step == self.left_out


class Strided(masks.Mask):
    """A number for each example."""

    strides: Any  # [*B]

    def visible(self, i, j):
        return (i - j) % self.strides == 0


class Documents(masks.Mask):
    """A number for each position of each example, and of keys alone."""

    ids: Any  # [*B, S]
    ranks: ClassVar = {"ids": 1}

    def visible(self, i, j):
        return (self.ids[i] == self.ids[j]) & (j != 7)


PICTURES = {
    "dilated": ((ROWS - COLUMNS) % 3 == 0)[None],
    "strided": (ROWS - COLUMNS) % STRIDES[:, None, None] == 0,
    "documents": (IDS[:, :, None] == IDS[:, None, :]) & (COLUMNS != 7),
}
MAKE = {
    "dilated": Dilated,
    "strided": lambda: Strided(jnp.asarray(STRIDES)),
    "documents": lambda: Documents(jnp.asarray(IDS)),
}
EVERY = pytest.mark.parametrize("name", MAKE)
CAUSAL = COLUMNS <= ROWS
V5E, H100 = Platform("tpu", "TPU v5e", None), Platform("cuda", "H100", (9, 0))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, x64):
    """Several blocks in each sequence."""
    monkeypatch.setattr(engine, "default_block", lambda mask: 8)


@functools.cache
def arrays():
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(B, T, *size)) for size in ((N, H), (K, H), (K, D), (N, D)))


def both(attend, *arrays, weight=None):
    """The output of a function of arrays, and its gradients, in one program."""

    def run(arrays, weight):
        y, pull_back = jax.vjp(attend, *arrays)
        return y, *pull_back(weight)

    return jax.jit(run)(arrays, arrays[0] if weight is None else weight)


def assert_same(got, true):
    assert_close(got, true, rtol=1e-6, atol=1e-8)  # lse and sums are in float64 here


EXACT = {
    "dense": (lambda *x, m: attention(scores.Dot(), *x, mask=m, implementation="dense"), None),
    "blockwise": (
        lambda *x, m: attention(
            scores.Dot(), *x, mask=m & masks.Causal(), implementation="blockwise"
        ),
        CAUSAL,
    ),
    "window": (
        lambda *x, m: window_attention(*x, window=(7, 2), mask=m, implementation="blockwise"),
        (COLUMNS >= ROWS - 7) & (COLUMNS <= ROWS + 2),
    ),
    "chunked": (
        lambda *x, m: routes.Chunked(8)(scores.Dot(), *x, mask=m),
        (ROWS // 8 - COLUMNS // 8 <= 1) & (COLUMNS // 8 <= ROWS // 8),
    ),
    "local": (
        lambda *x, m: local_attention(
            *x, jnp.broadcast_to(jnp.arange(T), (B, T)), half_width=6, score=scores.Dot(), mask=m
        ),
        np.abs(ROWS - COLUMNS) <= 6,
    ),
    "hard": (lambda *x, m: hard_attention(*x, mask=m, straight_through=True).context, None),
}


@pytest.mark.parametrize(
    ("route", "name"),
    daily(
        itertools.product(EXACT, MAKE),
        *(("blockwise", name) for name in MAKE),
        ("dense", "documents"),
        ("window", "dilated"),
        ("chunked", "strided"),
        ("local", "documents"),
        ("hard", "strided"),
    ),
)
def test_exact_attention_sees_what_it_shows(name, route):
    attend, seen = EXACT[route]
    q, k, v, weight = arrays()
    picture = PICTURES[name] if seen is None else PICTURES[name] & seen
    true = oracle.attention(oracle.scaled_dot, q, k, v, mask=picture[:, None])
    got = both(lambda *x: attend(*x, m=MAKE[name]()), q, k, v, weight=weight)
    grads = true.pull_back(weight)
    if route == "hard":  # its own value, and that of the chosen key
        assert_same(got[1:3], (grads.q, grads.k))
        chosen = np.argmax(true.weights, -1)  # [B, N, T]
        best = np.take_along_axis(np.repeat(v, N // K, 2).swapaxes(1, 2), chosen[..., None], 2)
        sees = np.broadcast_to(picture[:, None].any(-1), chosen.shape)[..., None]
        assert_same(got[:1], (np.where(sees, best, 0).swapaxes(1, 2),))
    else:
        assert_same(got, (true.context, grads.q, grads.k, grads.v))


@pytest.mark.slow
@EVERY
def test_around_a_ring(name):
    q, k, v, weight = (x[:, :, :1] for x in arrays())  # one head for two devices: no exchange
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    true = oracle.attention(oracle.scaled_dot, q, k, v, mask=(PICTURES[name] & CAUSAL)[:, None])
    mask = MAKE[name]() & masks.Causal()
    with over(mesh, length="x"):
        got = both(lambda *x: attention(scores.Dot(), *x, mask=mask), q, k, v, weight=weight)
    grads = true.pull_back(weight)
    assert_same(got, (true.context, grads.q, grads.k, grads.v))


def times(picture, causal):
    """How often pairs count in LSH attention of one bucket and a chunk of all tokens."""
    pairs = picture & (CAUSAL if causal else True) & ~np.eye(T, dtype=bool)
    return np.broadcast_to(pairs, (B, T, T))


def by_lsh(qk, v, *, mask, causal, implementation):
    buckets = np.zeros((B, 2, T, N), np.int32)
    options = {"causal": causal, "mask": mask, "implementation": implementation, "chunk_size": T}
    return lsh_attention(qk, v, buckets, **options)


def plain_lsh(qk, v, counts, sees_itself):
    keys = qk / jnp.sqrt(jnp.mean(qk * qk, -1, keepdims=True) + 1e-6) / np.sqrt(H)
    logits = jnp.einsum("btnh,bsnh->bnts", qk, keys)
    counts, sees_itself = counts[:, None], sees_itself[:, None]  # heads
    weights = jax.nn.softmax(jnp.where(counts, logits, -1e30))
    alone = ~counts.any(-1, keepdims=True)
    weights = jnp.where(alone, jnp.eye(T)[None, None] * sees_itself[..., None], weights)
    return jnp.einsum("bnts,bsnd->btnd", weights, jnp.repeat(v, N // K, 2))


@pytest.mark.parametrize(
    ("name", "implementation", "causal"),
    daily(
        itertools.product(MAKE, ["sorted", "dense"], [True, False]),
        ("dilated", "sorted", True),
        ("documents", "sorted", True),
        ("strided", "dense", False),
    ),
)
def test_lsh_asks_it_of_pairs(name, implementation, causal):
    qk, _, v, weight = arrays()
    options = {"mask": MAKE[name](), "causal": causal, "implementation": implementation}
    got = both(functools.partial(by_lsh, **options), qk, v, weight=weight)
    picture = np.broadcast_to(PICTURES[name], (B, T, T))
    counts, own = times(picture, causal), np.diagonal(picture, axis1=1, axis2=2)
    true = both(lambda *x: plain_lsh(*x, counts, own), qk, v, weight=weight)
    assert_same(got, true)


@pytest.mark.parametrize("implementation", ["sorted", "dense"])
def test_lsh_shows_a_token_nothing_of_what_is_hidden(implementation):
    """Token 0 sees no other; by this mask not even itself."""
    qk, _, v, weight = arrays()
    mask = Dilated(3, left_out=1)
    y, _, dv = both(
        functools.partial(by_lsh, mask=mask, causal=True, implementation=implementation),
        qk,
        v,
        weight=weight,
    )
    assert not np.any(y[:, 0]) and np.any(y[:, 1])
    assert not np.any(dv[:, -1])  # nobody sees the last one


@pytest.mark.parametrize("implementation", ["sorted", "dense"])
def test_lsh_across_two_sequences(implementation):
    q, k, v, weight = arrays()
    picture = PICTURES["strided"]
    ids = np.zeros((B, 2, T, N), np.int32), np.zeros((B, 2, T, K), np.int32)

    def attend(q, k, v):
        options = {"mask": MAKE["strided"](), "implementation": implementation}
        return lsh_cross_attention(q, k, v, *ids, chunk_size=T, **options)

    def plain(q, k, v):
        k, v = (jnp.repeat(x, N // K, 2) for x in (k, v))
        keys = k / jnp.sqrt(jnp.mean(k * k, -1, keepdims=True) + 1e-6) / np.sqrt(H)
        logits = jnp.einsum("btnh,bsnh->bnts", q, keys)
        weights = jax.nn.softmax(jnp.where(picture[:, None], logits, -1e30))
        return jnp.einsum("bnts,bsnd->btnd", weights, v)

    assert_same(both(attend, q, k, v, weight=weight), both(plain, q, k, v, weight=weight))


SERVED = {
    "window": (masks.Window(3, 1), CAUSAL & (COLUMNS >= ROWS - 3)),
    "past": (masks.Window(3, 0), CAUSAL & (COLUMNS >= ROWS - 3)),
    "pairs": (masks.Explicit(PICTURES["strided"][:, None]), PICTURES["strided"]),
    "heads": (
        masks.Explicit(np.broadcast_to(PICTURES["dilated"], (1, N, T, T))),
        PICTURES["dilated"],
    ),
    "two": (masks.Segments(IDS) & masks.Segments(IDS[::-1]), None),
    "of keys": (masks.Segments(IDS, IDS), IDS[:, :, None] == IDS[:, None, :]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_lsh_takes_the_masks_that_sorting_does_not_know(name):
    mask, picture = SERVED[name]
    if picture is None:
        same = IDS[:, :, None] == IDS[:, None, :]
        picture = same & same[::-1]
    qk, _, v, weight = arrays()
    picture = np.broadcast_to(picture, (B, T, T))
    counts, own = times(picture, True), np.ones((B, T))
    true = both(lambda *x: plain_lsh(*x, counts, own), qk, v, weight=weight)
    for implementation in ("sorted", "dense"):
        options = {"mask": mask, "causal": True, "implementation": implementation}
        assert_same(both(functools.partial(by_lsh, **options), qk, v, weight=weight), true)


def test_lsh_over_devices_that_share_the_rounds_of_a_head():
    qk, _, v, weight = arrays()
    qk, v, weight = qk[:, :, :1], v[:, :, :1], weight[:, :, :1]
    buckets = jnp.asarray(np.random.default_rng(1).integers(0, 2, size=(B, 2, T, 1)))
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def attend(qk, v):
        options = {"mask": MAKE["documents"](), "implementation": "sorted"}
        return lsh_attention(qk, v, buckets, chunk_size=8, **options)

    true = both(attend, qk, v, weight=weight)
    with over(mesh, length="x"):
        assert_same(both(lambda *x: attend(*x), qk, v, weight=weight), true)


def test_the_quality_of_a_hash_is_that_of_visible_pairs():
    qk, _, v, _ = arrays()
    buckets = np.zeros((B, 2, T, N), np.int32)
    quality = jax.jit(lambda *x: hash_quality(*x, chunk_size=T, mask=MAKE["strided"]()))(
        qk, v, buckets
    )
    np.testing.assert_allclose(quality.visible_pairs, 1)
    np.testing.assert_allclose(quality.captured_mass, 1, rtol=1e-9)


DECODED = {
    "all pairs": routes.AllPairs(),
    "window": routes.Window(9, 0),
    "lsh": routes.LSH(2, num_buckets=4, chunk_size=8),
}


@pytest.mark.parametrize(
    ("route", "name"),
    daily(
        itertools.product(DECODED, MAKE),
        ("all pairs", "strided"),
        ("window", "dilated"),
        ("lsh", "documents"),
    ),
)
def test_decoding_is_the_forward(route, name):
    x = arrays()[0].reshape(B, T, -1).astype("f")
    module = MultiHeadAttention(2, route=DECODED[route])

    @jax.jit
    def begin(x):
        variables = module.init(jax.random.key(0), x, decode=True)
        return variables, module.apply(variables, x, mask=MAKE[name]() & masks.Causal())

    variables, true = begin(x)
    step = jax.jit(
        lambda variables, x: module.apply(
            variables, x, mask=MAKE[name](), decode=True, mutable=["cache"]
        )
    )
    parts = []
    for tokens in (slice(0, 3), slice(3, 4), slice(4, 9), slice(9, 10)):
        y, updated = step(variables, x[:, tokens])
        variables |= updated
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), true[:, :10], rtol=1e-4, atol=1e-5)


@EVERY
def test_vmap_maps_its_arrays_too(name):
    def attend(q, k, v, mask):
        return attention(scores.Dot(), q, k, v, mask=mask, implementation="blockwise")

    operands = *arrays()[:3], MAKE[name]()
    true, mapped, two_batch_axes = jax.jit(
        lambda *x: (attend(*x), jax.vmap(attend)(*x), attend(*jax.tree.map(lambda x: x[None], x)))
    )(*operands)
    np.testing.assert_allclose(mapped, true, rtol=1e-9)
    np.testing.assert_allclose(two_batch_axes[0], true, rtol=1e-9)


@EVERY
def test_it_can_be_looked_at(name):
    looked_at = jax.jit(lambda x: (x.as_array(T, T), x.for_queries(5, 4).as_array(4, T)))
    whole, cut = looked_at(MAKE[name]())
    np.testing.assert_array_equal(whole.reshape(-1, T, T), PICTURES[name])  # [*B, 1, T, T]
    np.testing.assert_array_equal(cut.reshape(-1, 4, T), PICTURES[name][:, 5:9])


def test_a_kernel_says_that_it_does_not_take_it():
    def attend(x, **options):
        attend = functools.partial(attention, scores.Dot(), mask=Dilated(), **options)
        return jax.eval_shape(lambda x: attend(x, x, x), x)

    x = jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.bfloat16)
    for platform, name in ((V5E, "splash"), (V5E, "pallas"), (H100, "cudnn"), (H100, "pallas")):
        with compiling_for(platform):
            with pytest.raises(NotImplementedError, match=rf'"{name}" takes .*Dilated; use imp'):
                attend(x, implementation=name)
            attend(x)  # an engine
    route = routes.LSH(2, num_buckets=4, chunk_size=8, implementation="pallas")
    with compiling_for(V5E), pytest.raises(NotImplementedError, match="pallas.*not of other pairs"):
        jax.eval_shape(lambda x: route(scores.Dot(), x, x, x, mask=Dilated()), x)


class Floats(Dilated):
    def visible(self, i, j):
        return jnp.where(super().visible(i, j), 0.0, -jnp.inf)


FLOATS = Floats(), r"Floats\.visible\(i, j\) must return booleans .*got float64 \(2, 5, 3\)"


class NoRank(masks.Mask):
    ids: Any

    def visible(self, i, j):
        return self.ids[i] == self.ids[j]


def attend(mask):
    return attention(scores.Dot(), *map(jnp.asarray, arrays()[:3]), mask=mask)


@pytest.mark.parametrize(
    ("call", "mask", "words"),
    [
        (lambda mask: by_lsh(*arrays()[::2], mask=mask, causal=True, implementation=None), *FLOATS),
        (lambda mask: mask.as_array(T, T), *FLOATS),
        (attend, NoRank(jnp.asarray(IDS)), r"NoRank\.visible.*one example; got .*"),
        (attend, Strided(None), "Strided"),
    ],
    ids=["lsh", "as_array", "no rank", "no array"],
)
def test_what_is_wrong_with_it_is_said_in_one_line(call, mask, words):
    """The page of refusals has attention's other lines."""
    with pytest.raises(ValueError, match=words) as caught:
        call(mask)
    assert "\n" not in str(caught.value)
