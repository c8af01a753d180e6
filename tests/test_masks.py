"""Masks: the pairs they show, in one piece and in blocks, and the key ranges they promise."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, scores
from attnlab.core.axes import HeadLayout
from attnlab.ops.attention import attention
from attnlab.ops.kernels.pallas import exact
from tests import oracle
from tests.mask_cases import BATCH, HEADS, KEYS, MASKS, QUERIES

EVERY = pytest.mark.parametrize("case", MASKS, ids=lambda case: case.name)
EXACT_RANGE = ("causal", "causal_offset", "window", "window_left", "window_right", "padding_one")


BLOCKS = ((slice(0, 1), slice(0, 19)), (slice(5, 11), slice(8, 15)))
RANGES = [(i, j) for i in range(QUERIES) for j in range(i + 1, QUERIES + 1, 3)]


def expand(array) -> np.ndarray:
    return np.broadcast_to(array, (BATCH, HEADS, QUERIES, KEYS))


@functools.cache
def computed(case):
    """What the tests of every mask look at, as one program."""

    @jax.jit
    def of(mask):
        queries, keys = np.arange(QUERIES), np.arange(KEYS)
        return {
            "array": mask.as_array(QUERIES, KEYS),
            "blocks": [mask.block(queries[rows], keys[columns]) for rows, columns in BLOCKS],
            "padded": mask.pad(8, 8).block(jnp.arange(8, 16), jnp.arange(16, 24)),
            "ranges": [mask.key_range(queries[i:j], KEYS) for i, j in RANGES],
        }

    return jax.device_get(of(case.make()))


@EVERY
def test_as_array_is_the_picture(case):
    array = computed(case)["array"]
    assert array.dtype == bool and array.ndim >= 3 and array.shape[-2:] == (QUERIES, KEYS)
    np.testing.assert_array_equal(expand(array), case.whole())


@EVERY
def test_a_block_is_a_piece_of_the_array(case):
    whole = case.whole()
    for (rows, columns), block in zip(BLOCKS, computed(case)["blocks"], strict=True):
        expected = whole[:, :, rows, columns]
        np.testing.assert_array_equal(np.broadcast_to(block, expected.shape), expected)


@EVERY
def test_padded_blocks(case):
    """After `pad`, whole blocks beyond the end can be asked for; the real part is unchanged."""
    block = np.broadcast_to(computed(case)["padded"], (BATCH, HEADS, 8, 8))
    np.testing.assert_array_equal(block[..., :5, :3], case.whole()[..., 8:, 16:])


@EVERY
def test_key_range_holds_all_that_is_visible(case):
    whole = case.whole()
    for (start, stop), (first, last) in zip(RANGES, computed(case)["ranges"], strict=True):
        assert 0 <= first and last <= KEYS
        seen = np.flatnonzero(whole[:, :, start:stop].any((0, 1, 2)))
        assert seen.size == 0 or (first <= seen[0] and seen[-1] < last)
        if case.name in EXACT_RANGE or case.name.startswith("explicit_pairs"):
            assert (max(last - first, 0), first if seen.size else 0) == (
                (seen[-1] + 1 - seen[0], seen[0]) if seen.size else (0, 0)
            )


@EVERY
def test_key_range_leaves_something_out(case):
    """Where no query of a block sees the first or the last keys, the range says so."""
    if case.name in ("window_none", "explicit_queries", "explicit"):
        return  # these rule out no key for all examples and heads
    ranges = zip(RANGES, computed(case)["ranges"], strict=True)
    assert any(last - first < KEYS for (i, j), (first, last) in ranges if j == i + 1)


def test_packed_segments_see_only_their_own_range():
    ids = jnp.array([[0] * 4 + [1] * 5 + [2] * 3])
    mask = masks.Segments(ids)
    assert tuple(map(int, mask.key_range(jnp.arange(4, 9), 12))) == (4, 9)
    assert tuple(map(int, mask.key_range(jnp.arange(3, 5), 12))) == (0, 9)
    np.testing.assert_array_equal(
        mask.as_array(12, 12)[0, 0], oracle.segments(np.array(ids)[0], np.array(ids)[0])
    )


@pytest.mark.parametrize(
    ("mask", "reach"),
    [
        (masks.Causal(), (None, 0)),
        (masks.Window(3, 2), (3, 2)),
        (masks.Window(None, 2), (None, 2)),
        (masks.Padding(5), (None, None)),
        (masks.Chunks(4, 1), (7, 3)),
        (masks.Window(3, 2) & masks.Causal(), (3, 0)),
        (masks.Padding(5) & masks.Window(3, None) & masks.Window(7, 1), (3, 1)),
    ],
    ids=str,
)
def test_reach(mask, reach):
    assert mask.reach == reach


def test_masks_are_pytrees():
    mask = masks.Window(2, 1, jnp.array([0, 3])) & masks.Padding(jnp.array([4, 6]))
    assert [x.shape for x in jax.tree.leaves(mask)] == [(2,), (2,)]
    whole = mask.as_array(5, 7)
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.as_array(5, 7))(mask), whole)
    mapped = jax.vmap(lambda mask: mask.as_array(5, 7))(mask)
    np.testing.assert_array_equal(mapped, whole)
    assert jax.tree.structure(masks.Window(2, 1)) != jax.tree.structure(masks.Window(2, 2))


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_and_takes_boolean_arrays_on_either_side(make):
    array = make([[True, True], [False, True]])
    for mask in (masks.Causal() & array, array & masks.Causal()):
        np.testing.assert_array_equal(mask.as_array(2, 2)[0], [[True, False], [False, True]])


def test_an_array_of_keys_alone_is_asked_as_others_are():
    mask = masks.Explicit(np.array([False, True, True, False]))
    i, j = np.arange(3)[:, None], np.arange(4)[None]
    np.testing.assert_array_equal(mask.visible(i, j), mask.as_array(1, 4)[0])
    assert tuple(map(int, mask.key_range(jnp.arange(3), 4))) == (1, 3)


def test_combine():
    assert masks.combine(None, None) is None
    causal = masks.Causal()
    assert masks.combine(None, causal) is causal
    both = masks.combine(causal, None, np.array([True, False, True]))
    np.testing.assert_array_equal(
        both.as_array(3, 3)[0], oracle.causal(3, 3) & np.array([[True, False, True]])
    )


FAR = 2**31 - 1
FAR_AWAY = [
    *((masks.Causal(at), lambda i, j, at=at: j <= i + at) for at in (FAR, 2**31, -(2**40))),
    (masks.Causal(np.array([3 * 10**9], np.uint32)), lambda i, j: True),
    (masks.Window(0, FAR), lambda i, j: j >= i),
    (masks.Window(FAR, 0, q_offset=-2), lambda i, j: j <= i - 2),
    (masks.Window(FAR - 2, 1, q_offset=FAR - 4), lambda i, j: j >= i - 2),
    (masks.Chunks(2, look_back=10**9), lambda i, j: j // 2 <= i // 2),
    (masks.Chunks(3, FAR // 3 - 1, FAR - 4), lambda i, j: j // 3 > (FAR - 4 + i) // 3 - FAR // 3),
    *((masks.Padding(n, 2**40), lambda i, j, n=n: j < n) for n in (2**31, 99, 3, -1)),
    (masks.Padding(np.array([3 * 10**9], np.uint32)), lambda i, j: True),
]


@pytest.mark.parametrize("mask, seen", FAR_AWAY, ids=lambda x: str(x) * isinstance(x, masks.Mask))
def test_integers_that_int32_does_not_hold(mask, seen):
    """What dense attention, blocks, kernels and decoding ask for says one thing."""
    want = np.array([[seen(i, j) for j in range(5)] for i in range(4)])
    np.testing.assert_array_equal(mask.as_array(4, 5).reshape(4, 5), want)
    np.testing.assert_array_equal(mask.for_queries(1, 2).as_array(2, 5).reshape(2, 5), want[1:3])
    ranges = [mask.key_range(jnp.arange(i, i + 1), 5) for i in range(4)]
    if mask.lengths is not None or mask.band is not None:
        made = mask.in_layout(HeadLayout((1,), 1, 1, 4, 5))
        first, stop = (np.broadcast_to(x, (1, 4))[0] for x in exact._range(made, 4, 5))
        ranges += zip(first, stop, strict=True)
    for i, (first, stop) in enumerate(ranges):
        shown = [j in range(int(first), int(stop)) for j in range(5)]
        np.testing.assert_array_equal(shown, want[i % 4])


def test_sizes_may_be_of_numpy():
    assert masks.Window(np.int64(3), None) == masks.Window(3, None)
    assert masks.Chunks(np.int64(4), np.int8(2)) == masks.Chunks(4, 2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize("make", [lambda n: masks.Padding(n, n), masks.Causal])
def test_numbers_of_any_integer_type(make, dtype, x64):
    """More keys than 8 bits count, and than are computed as one block."""
    numbers = np.array([100, 77])
    np.testing.assert_array_equal(attend(make(numbers.astype(dtype))), attend(make(numbers)))


@jax.jit
def attend(mask):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 300, 1, 4))
    return attention(scores.Dot(), q, k, v, mask=mask, implementation="blockwise")


@pytest.mark.parametrize(
    "mask", [masks.Explicit(np.eye(3, 5, dtype=bool)), masks.Segments(np.arange(3), np.arange(5))]
)
def test_a_query_without_a_row_of_the_whole_mask_sees_nothing(mask):
    for first, seen in ((1, [1, 2]), (2, [2, None]), (3, [None, None]), (-1, [None, 0])):
        cut = jax.jit(lambda first: mask.for_queries(first, 2).as_array(2, 5))(first)
        want = [np.arange(5) == (-1 if key is None else key) for key in seen]
        np.testing.assert_array_equal(cut.reshape(2, 5), want)


def test_positions_of_few_bits_do_not_wrap_where_a_mask_is_cut():
    assert int(masks.Causal(jnp.int8(100)).for_queries(100, 2).q_offset) == 200  # an int8 is -56
    cut = masks.Padding(6, 5).for_queries(np.uint8(3), 4)
    assert cut.q_lengths == 2  # by the uint8 −3, which is 253, it would be 258


def test_positions_may_be_a_list_where_a_mask_is_cut():
    cut = masks.Causal([0, 2]).for_queries(jnp.int32(1), 2)
    whole = masks.Causal(np.array([0, 2])).as_array(3, 5)
    np.testing.assert_array_equal(cut.as_array(2, 5), whole[..., 1:, :])


def test_queries_past_the_last_real_one_are_not_counted_from_256():
    mask = masks.Padding(7, jnp.asarray(3, jnp.uint8)).for_queries(5, 4)
    assert not mask.as_array(4, 7).any()


def test_a_mask_of_a_users_own_names_its_fields_as_it_likes():
    """`visible` is enough, whatever they are called; the rest is in `test_own_masks.py`."""

    class Every(masks.Mask):
        first: int = flax.struct.field(pytree_node=False)

        def visible(self, i, j):
            return (i + j) % self.first == 0

    class OfAnArray(Every):
        array: jax.Array = 0.5

    q, k = np.random.default_rng(0).normal(size=(2, 1, 41, 1, 4)).astype("f")

    @jax.jit
    def contexts(mask):
        want = attention(scores.Dot(), q, k, k, mask=mask.as_array(41, 41))
        return attention(scores.Dot(), q, k, k, mask=mask, implementation="blockwise"), want

    np.testing.assert_allclose(*contexts(Every(3) & masks.Causal()), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(OfAnArray(3).as_array(5, 7), Every(3).as_array(5, 7)[None, 0])


def test_a_cut_mask_looks_where_its_queries_stand():
    """A user's own, whose `for_queries` and `key_range` are those of `Mask` and of the user."""

    class Past(masks.Mask):
        def visible(self, i, j):
            return j <= i

        def key_range(self, q_positions, num_keys):
            return 0, q_positions[-1] + 1

        @property
        def hides_future(self):
            return True

    cut = Past().for_queries(5, 4)
    assert cut.hides_future
    first, stop = cut.key_range(jnp.arange(1, 3), 19)
    assert (int(first), int(stop)) == (0, 5 + 2 + 1)
    seen = cut.visible(np.arange(4)[:, None], np.arange(19)[None])
    np.testing.assert_array_equal(seen, np.tri(4, 19, 5, dtype=bool))
    # windows, rotary positions and biases ask here
    assert masks.first_position(cut) == 5
    assert masks.first_position(masks.Padding(19) & cut.for_queries(2, 1)) == 5 + 2


def test_visible_keys_are_those_that_no_query_behind_them_misses():
    real = np.random.default_rng(0).uniform(size=(BATCH, KEYS)) < 0.5
    lengths = jnp.array([KEYS, 3, 0])
    mask = masks.Causal(jnp.array([0, 5, -3])) & masks.from_padding(real) & masks.Padding(lengths)
    seen = masks.visible_keys(mask, KEYS)
    np.testing.assert_array_equal(seen, real & (np.arange(KEYS) < np.asarray(lengths)[:, None]))
    np.testing.assert_array_equal(masks.visible_keys(None, KEYS), np.ones(KEYS, bool))


@pytest.mark.parametrize(
    "make",
    [
        lambda: masks.Explicit(np.ones((5, 7), bool)) & masks.Padding(jnp.array([3, 7])),
        lambda: masks.Segments(jnp.zeros((2, 5), int), jnp.zeros((2, 7), int)),
    ],
)
def test_the_leaves_of_a_mask_may_be_anything(make):
    """What JAX puts there: objects, shapes, None, the float0 of a gradient, axes of `vmap`."""
    mask = make()
    leaves, tree = jax.tree.flatten(mask)
    for leaf in (object(), None, 0, 1.5, np.ones(3)):
        assert jax.tree.leaves(tree.unflatten([leaf] * len(leaves)), is_leaf=lambda x: x is None)
    zeros = jax.vjp(lambda mask: jnp.float32(0), mask)[1](jnp.float32(1))[0]
    assert jax.tree.structure(zeros) == tree
    assert jax.eval_shape(lambda mask: mask, mask).__class__ is type(mask)


def test_positions_may_be_a_list_in_a_mask_that_jit_is_given():
    mask = masks.Causal([0, 2]) & masks.Padding([5, 3])
    seen = jax.jit(lambda mask: mask.as_array(3, 5))(mask)
    np.testing.assert_array_equal(seen, mask.as_array(3, 5))
