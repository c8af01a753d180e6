"""NNX modules in the transforms of NNX, as a user of them writes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnlab.nnx
from attnlab import AdditiveScore, RelativePositionBias, masks, routes, scores
from tests.daily import daily

B, T, D, N = 2, 7, 12, 3
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
FIELDS = {
    "plain": {},
    "dropped": {"dropout_rate": 0.25, "score": AdditiveScore()},
    "hashed": {"route": routes.LSH(num_buckets=2, chunk_size=4, centering="learned")},
    "placed": {
        "route": routes.Window(3, 0),
        "score": scores.Cosine(np.arange(3, dtype="f")),
        "position_bias": RelativePositionBias(),
    },
}
EVERY = pytest.mark.parametrize("name", daily(FIELDS, "dropped", "hashed"))


def make(name, rngs=None, **fields):
    return attnlab.nnx.MultiHeadAttention(N, D, rngs=rngs or nnx.Rngs(0), **FIELDS[name], **fields)


def sequence(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, T, D)), jnp.float32)


def layers(name, number):
    """As many modules as one, whose parameters lead with an axis of layers."""

    @nnx.split_rngs(splits=number)
    @nnx.vmap(in_axes=0, out_axes=0)
    def stack(rngs):
        module = make(name, rngs)
        module.init_cache((B, T, D))
        return module

    return stack(nnx.Rngs(0))


@EVERY
def test_gradients_train_every_parameter(name):
    optax = pytest.importorskip("optax")
    module, x = make(name), sequence()
    optimizer = nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(module, nnx.Param))

    @nnx.jit
    def step(module, optimizer, x):
        def loss(module):
            return nnx.remat(lambda module, x: module(x, mask=masks.Causal()))(module, x).std()

        value, grads = nnx.value_and_grad(loss)(module)
        optimizer.update(module, grads)
        return value

    module.train()
    losses = [step(module, optimizer, x) for _ in range(3)]
    assert losses[2] < losses[0]
    after = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, after)
    assert all(jax.tree.leaves(moved)), moved


@EVERY
def test_scanned_layers_are_called_and_decode_one_after_the_other(name):
    x, stacked = sequence(), layers(name, 2)
    stacked.eval()

    @nnx.jit
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def whole(module, x):
        return x + module(x, mask=masks.Causal())

    @nnx.jit
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def step(module, x):
        return x + module(x, decode=True)

    graph, state = nnx.split(stacked)
    true = x
    for i in range(2):
        one = nnx.merge(graph, jax.tree.map(lambda x, i=i: x[i], state))
        true = true + one(true, mask=masks.Causal())
    np.testing.assert_allclose(whole(stacked, x), true, **CLOSE)
    pieces = [step(stacked, x[:, first : first + size]) for first, size in ((0, 4), (4, 1), (5, 2))]
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), true, **CLOSE)


@EVERY
def test_what_is_split_and_merged_or_saved_is_the_same_module(name, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    x, module = sequence(), make(name)
    module.eval()
    module.init_cache(x.shape)
    module(x[:, :3], decode=True)
    graph, params, cache, rest = nnx.split(nnx.clone(module), nnx.Param, nnx.Cache, ...)
    assert set(cache) >= {"cached_key", "cached_value", "cache_index"}
    kept = nnx.Not(nnx.RngState)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", nnx.to_pure_dict(nnx.state(module, kept)))
    merged = nnx.merge(graph, params, cache, rest)
    other = make(name, nnx.Rngs(1))
    other.eval()
    other.init_cache(x.shape)
    state = nnx.state(other, kept)
    with ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.restore(tmp_path / "saved", nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, saved)
    nnx.update(other, state)
    true = module(x[:, 3:], decode=True)
    for again in (merged, other):
        np.testing.assert_array_equal(again(x[:, 3:], decode=True), true)


def test_a_step_compiles_once_and_a_new_cache_begins_anew():
    module, x = make("hashed"), sequence()
    module.eval()
    traced = []

    @nnx.jit
    def step(module, x):
        traced.append(x.shape)
        return module(x, decode=True)

    first = []
    for _ in range(2):
        module.init_cache(x.shape)
        first.append([step(module, x[:, t : t + 1]) for t in range(T)])
    np.testing.assert_array_equal(*first)
    assert len(traced) == 1
    source = sequence(1)
    view = nnx.view(module, decode=True, batch_size=B, max_length=T)
    np.testing.assert_array_equal(jnp.concatenate(first[0], 1)[:, :1], view(x[:, :1]))
    cross = make("plain")
    for key in (source, 2 * source):
        cross.init_cache(x.shape, cross=True)
        for tokens in (x[:, :3], x[:, 3:]):
            y = nnx.jit(lambda module, x, key: module(x, key, decode=True))(cross, tokens, key)
        np.testing.assert_allclose(y, cross(x, key)[:, 3:], **CLOSE)
    assert type(cross.source_key) is attnlab.nnx.SourceCache and cross.cached_key is None


def test_a_model_is_tabulated_and_then_called_as_before():
    """`nnx.tabulate` runs every function of a module's class under `jit`, where it is called."""
    x = sequence()
    local = attnlab.nnx.LocalAttention(in_features=D, half_width=2, rngs=nnx.Rngs(0))
    for module, inputs in ((make("placed"), [x, x]), (make("hashed"), [x]), (local, [x, x])):
        want = module(*inputs)
        nnx.tabulate(module, *inputs)
        np.testing.assert_array_equal(module(*inputs), want)


def test_modules_of_one_definition_are_alike_whatever_initializes_them():
    inits = [nnx.initializers.constant(value) for value in (2.0, 3.0)]
    made = [
        attnlab.nnx.MultiHeadAttention(N, D, kernel_init=init, rngs=nnx.Rngs(0)) for init in inits
    ]
    assert nnx.graphdef(made[0]) == nnx.graphdef(made[1])
    assert (made[0].out.kernel == 2).all() and (made[1].query.kernel == 3).all()


def test_streams_are_the_modules_own_or_the_calls():
    x = sequence()
    module, rngs = make("dropped"), nnx.Rngs(0)
    module.train()
    assert (module(x) != module(x)).any()
    still = [module(x, deterministic=True) for _ in range(2)]
    np.testing.assert_array_equal(*still)
    again = [module(x, rngs=given) for given in (nnx.Rngs(dropout=3), nnx.Rngs(dropout=3))]
    np.testing.assert_array_equal(*again)
    stream = module(x, rngs=nnx.Rngs(dropout=3).dropout)
    np.testing.assert_array_equal(stream, again[0])
    np.testing.assert_array_equal(nnx.view(module, deterministic=True)(x), still[0])
    other = attnlab.nnx.MultiHeadAttention(N, D, rngs=rngs, keep_rngs=False, **FIELDS["dropped"])
    assert other.rngs is None
    hashed = [
        attnlab.nnx.LSHSelfAttention(N, D, route=routes.LSH(num_buckets=4, chunk_size=2), rngs=own)
        for own in (nnx.Rngs(0), nnx.Rngs(0, hash=1), nnx.Rngs(0, hash=2))
    ]
    results = [attend(x) for attend in hashed]
    assert (results[0] == hashed[0](x)).all() and (results[1] != results[2]).any()


def test_axes_are_named_where_a_mesh_is():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    rules = [("embed", None), ("heads", None), ("head_dim", "model"), ("hidden", "model")]
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        module = attnlab.nnx.MultiHeadAttention(N, D, logical_axes=True, rngs=nnx.Rngs(0))
        concat = attnlab.nnx.ConcatAttention(4, in_features=D, logical_axes=True, rngs=nnx.Rngs(0))
    assert module.query.kernel[...].sharding.spec == jax.P(None, None, "model")
    assert concat.score.key_kernel[...].sharding.spec == jax.P(None, None, "model")


def test_decoding_hashes_with_one_key_of_the_modules_stream():
    x = sequence()
    module, other = make("hashed", nnx.Rngs(0, hash=1)), make("hashed", nnx.Rngs(0, hash=1))
    module.init_cache(x.shape)
    step = nnx.jit(lambda module, x: module(x, decode=True))
    pieces = [step(module, x[:, :4]), step(module, x[:, 4:])]
    true = other(x, mask=masks.Causal(), deterministic=True)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), true, **CLOSE)


def test_decoding_hashes_all_tokens_alike_whatever_streams_its_calls_are_given():
    x, rngs = sequence(), nnx.Rngs(hash=1)
    module = make("hashed", nnx.Rngs(0), keep_rngs=False)
    module.init_cache(x.shape)
    pieces = [module(part, decode=True, rngs=rngs) for part in (x[:, :4], x[:, 4:])]
    true = module(x, mask=masks.Causal(), deterministic=True)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), true, **CLOSE)
