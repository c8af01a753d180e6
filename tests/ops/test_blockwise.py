"""The engine against the oracle, on both of its code paths: a CPU's and an accelerator's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, scores
from attnlab.ops import blockwise, dense
from attnlab.ops.blockwise import engine
from attnlab.ops.layout import merge_output, prepare
from attnlab.testing import Sizes
from tests import oracle
from tests.daily import daily
from tests.mask_cases import BATCH, HEADS, KEYS, MASKS, QUERIES
from tests.mechanism_cases import SCORES
from tests.trees import assert_close

SIZES = Sizes(batch=2)
BY_NAME = {case.name: case for case in SCORES}


BRANCHES = {"cpu": "cpu", "accelerator": "default"}


@pytest.fixture(scope="module", params=daily(BRANCHES, "cpu"))
def path(request):
    """Which branch of `platform_dependent` is compiled, whatever the platform."""
    branch = BRANCHES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            jax.lax, "platform_dependent", lambda *args, **branches: branches[branch](*args)
        )
        jax.clear_caches()
        yield request.param
    jax.clear_caches()


def attend(engine, score, q, k, v, *, mask=None, bias=None, **options):
    """`attention`, with the engine's own options."""
    context = engine(prepare(score, q, k, v, masks.as_mask(mask), bias), **options)
    return merge_output(context, q.shape[:-3])


in_blocks = functools.partial(attend, functools.partial(blockwise.attend, block_q=7, block_k=9))


def run(attend, build, mask=None, **options):
    """Compiled: (q, k, v, parameters, bias, dcontext) -> context and gradients, in that order."""

    def context_and_grads(q, k, v, parameters, bias, dcontext):
        context, pull_back = jax.vjp(
            lambda q, k, v, p, bias: attend(build(*p), q, k, v, mask=mask, bias=bias, **options),
            *(q, k, v, parameters, bias),
        )
        return context, pull_back(dcontext)

    return jax.jit(context_and_grads)


def inputs(case, dtype, bias_shape=None, seed=0, sizes=SIZES):
    rng = np.random.default_rng(seed)
    arrays = (
        *case.qkv(rng, sizes),
        case.parameters(rng, sizes),
        None if bias_shape is None else rng.normal(size=bias_shape),
        rng.normal(size=(sizes.batch, sizes.queries, sizes.num_heads, sizes.value_width)),
    )
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), arrays)


def truth(case, q, k, v, parameters, bias, dcontext, mask=None):
    q, k, v, bias, dcontext = jax.tree.map(
        lambda x: np.asarray(x, np.float64), (q, k, v, bias, dcontext)
    )
    found = oracle.attention(case.equation, q, k, v, parameters, mask=mask, bias=bias)
    grads = found.pull_back(dcontext)
    return found.context, (grads.q, grads.k, grads.v, grads.parameters, grads.bias)


def check_budget(got, plain, true, dtype):
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(true)]
    leaves = (jax.tree.leaves(tree) for tree in (got, plain, true))
    for path, *values in zip(paths, *leaves, strict=True):
        oracle.assert_within_budget(*values, dtype, path)


# The error of a gradient of six numbers is a matter of luck: it is that of several draws together.
DRAWS = 5


@functools.cache
def plain(name, dtype):
    """The dense version's context and gradients, the oracle's, and the inputs, of every draw."""
    case = BY_NAME[name]
    draws = [inputs(case, dtype, (2, 6, 17, 23), seed=seed) for seed in range(DRAWS)]
    mask = np.random.default_rng(1).uniform(size=(2, 1, 17, 23)) < 0.7
    mask[0, 0, 3] = False
    by_dense = run(functools.partial(attend, dense.attend), case.build, mask)
    true = [truth(case, *arrays, mask=mask) for arrays in draws]
    return together(by_dense(*arrays) for arrays in draws), together(true), draws, mask


def together(draws):
    """Each array of all draws, with a new first axis for them."""
    return jax.tree.map(lambda *arrays: np.stack(arrays), *draws)


# Every score on one path; on the other, and in bfloat16, what the engine itself computes apart.
BUDGETS = (
    [("cpu", name, jnp.float32) for name in BY_NAME]
    + [("accelerator", name, jnp.float32) for name in ("dot", "additive", "concat", "location")]
    + [(path, name, jnp.bfloat16) for path in BRANCHES for name in ("dot", "additive")]
)


@pytest.mark.parametrize(
    ("path", "name", "dtype"),
    daily(BUDGETS, ("accelerator", "dot", jnp.float32)),
    ids=lambda x: getattr(x, "__name__", x),
    indirect=["path"],
)
def test_error_budget(path, name, dtype, as_users_compile):
    """With grouped heads, D ≠ H, an empty row, a bias, and blocks that do not divide."""
    by_dense, true, draws, mask = plain(name, dtype)
    by_blocks = run(in_blocks, BY_NAME[name].build, mask)
    got = together(by_blocks(*arrays) for arrays in draws)
    assert got[0].dtype == dtype
    check_budget(got, by_dense, true, dtype)


# Leading axes are sliced by one function and trailing ones by another: all of each, and all ones.
BIASES = [
    *((b, n, 17, 23) for b in (1, 2) for n in (1, 6)),
    *((2, 6, t, s) for t, s in ((1, 1), (1, 23), (17, 1))),
    (1, 1, 1, 1),
]


@pytest.mark.parametrize(
    ("path", "shape"),
    daily(
        [("cpu", shape) for shape in BIASES]
        + [("accelerator", shape) for shape in ((2, 6, 17, 23), (6, 1, 23), (17, 1), ())],
        *[("cpu", shape) for shape in ((2, 6, 17, 23), (2, 6, 1, 23), (1, 1, 1, 1))],
        ("accelerator", (6, 1, 23)),
    ),
    ids=str,
    indirect=["path"],
)
def test_bias_of_every_shape(path, shape, x64):
    case = BY_NAME["scaled_dot"]
    arrays = inputs(case, jnp.float64, shape)
    got = run(in_blocks, case.build)(*arrays)
    assert got[1][4].shape == shape
    assert_close(got, truth(case, *arrays), rtol=1e-10, atol=1e-12)


MASK_BY_NAME = {mask.name: mask for mask in MASKS}
# `test_masks.py` has every mask; here those that an engine slices or skips in ways of their own.
SLICED = """causal_offsets window window_offsets padding_one padding_both segments explicit
    explicit_heads explicit_keys explicit_queries all_of_them""".split()


@pytest.mark.parametrize(
    ("path", "name", "group_size"),
    daily(
        [("cpu", name, 2) for name in SLICED]
        # Heads that share no keys are sliced without the axis of the group.
        + [("cpu", name, 1) for name in ("segments", "all_of_them")]
        + [("accelerator", name, 2) for name in ("padding_both", "segments", "all_of_them")],
        *[("cpu", name, 2) for name in ("window", "explicit_heads", "all_of_them")],
        ("cpu", "segments", 1),
        ("accelerator", "padding_both", 2),
    ),
    indirect=["path"],
)
def test_every_mask(path, name, group_size, x64):
    mask = MASK_BY_NAME[name]
    case = BY_NAME["scaled_dot"]
    sizes = Sizes(BATCH, QUERIES, KEYS, HEADS // group_size, group_size)
    arrays = inputs(case, jnp.float64, sizes=sizes)
    got = run(in_blocks, case.build, mask.make())(*arrays)
    true = truth(case, *arrays, mask=mask.whole())
    assert_close(got, true, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", daily(["dot", "general", "additive"], "dot"))
def test_hidden_queries_change_nothing(name):
    """Garbage in queries from `q_lengths` on reaches no output and no gradient."""
    case, q_lengths = BY_NAME[name], np.array([9, 4])
    q, *rest = inputs(case, jnp.float32)
    mask = masks.Padding(jnp.array([23, 5]), jnp.asarray(q_lengths))
    engine = run(in_blocks, case.build, mask)
    hidden = np.arange(17) >= q_lengths[:, None]
    garbage = jnp.where(hidden[..., None, None], 1e18 * jnp.sign(q), q)
    assert (garbage != q).any()
    outputs = [engine(x, *rest) for x in (garbage, q)]
    jax.tree.map(np.testing.assert_array_equal, *outputs)


@pytest.mark.parametrize(
    ("num_queries", "num_keys"), daily([(1019, 601), (1301, 307)], (1301, 307))
)
def test_blocks_of_the_default_size(num_queries, num_keys):
    """Several blocks of them, in the program of this platform: nothing is replaced here."""
    case, dtype = BY_NAME["scaled_dot"], jnp.float32
    sizes = Sizes(1, num_queries, num_keys, num_kv_heads=2, group_size=1, width=3, value_width=5)
    arrays = inputs(case, dtype, (1, 2, num_queries, 1), sizes=sizes)
    mask = masks.Causal(20) & masks.Padding(num_keys - 100)
    picture = np.arange(num_keys) <= np.arange(num_queries)[:, None] + 20
    picture &= np.arange(num_keys) < num_keys - 100
    engines = (functools.partial(attend, engine.attend) for engine in (blockwise, dense))
    found = (run(engine, case.build, mask)(*arrays) for engine in engines)
    check_budget(*found, truth(case, *arrays, mask=picture), dtype)


EVERYTHING = {
    "causal": jnp.array([30]),
    "padding": jnp.array([29]),
    "segments": (np.zeros((1, 29), np.int32), np.zeros((1, 29), np.int32)),
    "explicit": np.ones((1, 1, 29, 29), bool),
}
# What each part hides below: with blocks of 8, queries 0–7 visit the keys of [first, stop) only.
NEAR = np.broadcast_to((np.arange(29) >= 9) & (np.arange(29) < 23), (1, 1, 29, 29))
PACKED = jnp.array([[0] * 8 + [1] * 16 + [2] * 5])
HIDING = {
    "causal": ({"causal": jnp.array([0])}, (0, 8)),
    "padding": ({"padding": jnp.array([15])}, (0, 16)),
    "segments": ({"segments": (PACKED, PACKED)}, (0, 8)),
    "explicit": ({"explicit": NEAR}, (8, 24)),
    "two_of_them": ({"padding": jnp.array([15]), "explicit": NEAR}, (8, 16)),
}


@functools.cache
def visits(path):
    """Compiled once a path: context and dq of queries 0–7 with NaN in some keys and values."""
    del path  # only keys the cache

    def first_block(parts, poisoned):
        mask = (
            (masks.Causal(parts["causal"]) & masks.Padding(parts["padding"]))
            & masks.Segments(*parts["segments"])
        ) & masks.Explicit(parts["explicit"])
        q, k, v = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 29, 2, 5)), "float32")
        k, v = (jnp.where(poisoned[None, :, None, None], jnp.nan, x) for x in (k, v))
        engine = functools.partial(blockwise.attend, block_q=8, block_k=8)
        out, pull_back = jax.vjp(
            lambda q: attend(engine, BY_NAME["dot"].build(), q, k, v, mask=mask), q
        )
        return out[:, :8], pull_back(jnp.ones_like(out))[0][:, :8]

    return jax.jit(first_block)


@pytest.mark.parametrize("name", HIDING)
def test_ruled_out_blocks_are_not_visited(name, path):
    """0 · NaN = NaN: had a block been visited, its NaN would be in the sums, masked or not."""
    parts, (first, stop) = HIDING[name]
    positions = np.arange(29)
    outside = (positions < first) | (positions >= stop)
    out, dq = visits(path)(EVERYTHING | parts, outside)
    assert np.isfinite(out).all() and np.isfinite(dq).all() and np.abs(dq).max() > 0
    for block in range(first // 8, stop // 8):  # and these are visited
        out, dq = visits(path)(EVERYTHING | parts, positions // 8 == block)
        assert np.isnan(out).any() and np.isnan(dq).any()


def test_blocks_outside_a_window_are_not_visited(path):
    q, k, v = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 61, 2, 5)), "float32")
    k, v = (x.at[:, :16].set(jnp.nan).at[:, 40:].set(jnp.nan) for x in (k, v))
    engine = functools.partial(blockwise.attend, block_q=8, block_k=8)

    @jax.jit
    def run(q, k, v):
        return jax.vjp(
            lambda q: attend(engine, BY_NAME["dot"].build(), q, k, v, mask=masks.Window(8, 8)), q
        )[1](jnp.ones_like(q))[0]

    dq = np.asarray(run(q, k, v))
    assert np.isfinite(dq[:, 24:32]).all() and np.isnan(dq[:, [16, 40]]).any(-1).all()


@pytest.mark.parametrize(
    ("given", "mask", "rows"),
    [(256, None, 256), (None, None, 1024), (None, masks.Window(1024, 0), 512)],
)
def test_a_cpu_takes_the_rows_that_are_given_and_twice_512_but_of_a_window(given, mask, rows, path):
    q = jnp.zeros((1, 2048, 1, 8))
    engine = functools.partial(blockwise.attend, block_q=given)
    function = functools.partial(attend, engine, BY_NAME["dot"].build(), mask=mask)
    program = jax.jit(lambda q: function(q, q, q)).lower(q).as_text()
    found = {n for n in (256, 512, 1024) if f"tensor<{n}x512xf32>" in program}
    assert found == {rows} or path != "cpu"


def test_a_bias_of_minus_infinity_hides(path):
    """As a mask does, empty rows included; keys with it get no gradient."""
    case = BY_NAME["scaled_dot"]
    hidden = np.random.default_rng(2).uniform(size=(2, 6, 17, 23)) < 0.4
    hidden[0, 0, 3] = hidden[1, :, :, :10] = True
    *arrays, _, dcontext = inputs(case, jnp.float32)
    bias = jnp.where(hidden, -jnp.inf, jnp.asarray(0.0))
    engine = run(in_blocks, case.build)
    context, grads = engine(*arrays, bias, dcontext)
    true, true_grads = truth(case, *arrays, None, dcontext, mask=~hidden)
    np.testing.assert_allclose(context, true, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(context)[0, 3, 0], 0)
    assert_close(grads[:3], true_grads[:3], atol=1e-5)
    np.testing.assert_array_equal(np.asarray(grads[4])[hidden], 0)


def test_extreme_logits(path):
    """Logits near ±1e4, the largest first or last in a row, or all alike."""
    case = BY_NAME["dot"]
    *arrays, _, dcontext = inputs(case, jnp.float32)
    ramp, level = np.linspace(-1e4, 1e4, 23), np.full(23, 1e4)
    engines = [run(x, case.build) for x in (in_blocks, functools.partial(attend, dense.attend))]
    for rows in ((ramp, -ramp), (level, -level)):
        bias = jnp.asarray(np.reshape(rows, (2, 1, 1, 23)), jnp.float32)
        got, plain = (engine(*arrays, bias, dcontext) for engine in engines)
        true = truth(case, *arrays, bias, dcontext)
        if rows[0] is level:
            # One unit of a logit of 1e4 is 1e-3, and as much of every weight: in dense, too.
            for x, y, want in zip(*map(jax.tree.leaves, (got, plain, true)), strict=True):
                unit = 2**-10 * oracle.rms(want)
                assert oracle.rms(oracle.errors(y, want)) <= unit
                assert oracle.rms(oracle.errors(x, want)) <= unit
        else:  # weights of 0 and 1: true gradients are zero, so dense has no error to compare with
            assert_close(got, true, atol=1e-5)


def test_a_piece_of_the_keys_is_visited_where_it_stands():
    """As a ring has it: keys from position 16 on, and queries from 24 on."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 1, 1, 16, 4))
    mask = masks.Window(5, 0, jnp.zeros((1, 1), int))
    starts = jnp.full((1, 1, 2), jnp.array([24, 16], jnp.int32))
    config = engine.Config(8, 8, 8, 32, False, 0.0, None)
    operands = engine.Differentiable(scores.Dot(), q, k, v, None)
    got, _ = jax.jit(engine.forward, static_argnums=0)(
        config, operands, engine.Fixed(mask, None, starts)
    )
    visible = mask.block(24 + jnp.arange(16), 16 + jnp.arange(16))
    weights = jax.nn.softmax(jnp.where(visible, q @ jnp.swapaxes(k, -1, -2) / 2, -jnp.inf))
    want = jnp.nan_to_num(weights @ v)  # the last ones see nothing
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


class Signed(scores.Score):
    """q·k times a head's weight and sign, of which the sign is an integer: nothing to learn."""

    weight: jax.Array
    sign: jax.Array

    def _parameters(self):
        return {"weight": 0, "sign": 0}

    def logits(self, q, k, *, precision=None):
        factor = (self.weight * self.sign)[..., None, None]
        return factor * jnp.matmul(q, jnp.swapaxes(k, -1, -2), precision=precision)


def test_a_score_may_hold_integers(path):
    q, k, v, d = jax.random.normal(jax.random.key(0), (4, 1, 20, 2, 4))

    def gradients(engine, q, weight):
        def loss(q, weight):
            score = Signed(weight, jnp.array([1, -1]))
            return jnp.sum(attend(engine, score, q, k, v, mask=masks.Causal()) * d)

        return jax.grad(loss, (0, 1))(q, weight)

    blocks = functools.partial(blockwise.attend, block_q=8, block_k=8)
    found, true = (
        jax.jit(gradients, static_argnums=0)(engine, q, jnp.array([0.5, 2.0]))
        for engine in (blocks, dense.attend)
    )
    assert_close(found, true, rtol=1e-4, atol=1e-5)
