"""What all recurrent models have in common: parameters, and a batch divided by `jax.shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models import Britz, Luong, NMTAttn, RNNEncDec, RNNSearch
from tests.daily import daily
from tests.models.rnn_checks import assert_drops

SOURCE, TARGET = jnp.array([[5, 6, 7], [8, 9, 2]]), jnp.array([[4, 2, 0, 0], [3, 5, 6, 2]])
WIDTHS = {"embed_features": 6, "hidden_features": 8}
MODELS = {
    "search": lambda **x: RNNSearch(13, 13, **WIDTHS | {"maxout_features": 5} | x),
    "enc-dec": lambda **x: RNNEncDec(13, 13, **WIDTHS | {"maxout_features": 5} | x),
    "luong": lambda **x: Luong(13, 13, **WIDTHS | {"num_layers": 2} | x),
    "luong, not fed": lambda **x: Luong(
        13, 13, **WIDTHS | {"window": "local-p", "input_feeding": False} | x
    ),
    "britz": lambda **x: Britz(13, 13, **WIDTHS | {"attention_features": 5} | x),
    "britz, none-state": lambda **x: Britz(13, 13, **WIDTHS | {"attention": "none-state"} | x),
    "nmt-attn": lambda **x: NMTAttn(**{f"{side}_vocab_size": 13 for side in ("source", "target")}
                                    | {"features": 8, "num_heads": 2} | x),
}  # fmt: skip


@pytest.mark.parametrize("name", daily(MODELS, "britz"))
def test_a_model_makes_its_parameters(name):
    """A shape alone says nothing of what a traced step leaves behind."""
    model = MODELS[name]()
    for make in (model.init, jax.jit(model.init)):
        variables = make(jax.random.key(0), SOURCE, TARGET)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(variables))
    for side in (0, 1):
        sides = [SOURCE, TARGET]
        sides[side] = sides[side].at[0, 1].set(-1)  # no word, and not the last of them
        finite = np.isfinite(jax.jit(model.apply)(variables, *sides)).all((1, 2))
        np.testing.assert_array_equal(finite, [False, True])


@pytest.mark.parametrize("name", daily(MODELS, "search"))
def test_dropout_in_half_precision(name):
    assert_drops(MODELS[name](dtype=jnp.bfloat16, dropout_rate=0.5))
    if name == "nmt-attn":
        assert_drops(MODELS[name](dtype=jnp.bfloat16, attention_dropout_rate=0.5))


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_divided_by_shard_map(name):
    """A scan's start of zeros has the type of its end; of one model the numbers are compared."""
    model = MODELS[name]()
    variables = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)

    def loss(variables, source, target):
        return jax.lax.pmean(model.apply(variables, source, target).var(), "rows")

    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = jax.P(), jax.P("rows")
    split = jax.shard_map(loss, mesh=mesh, in_specs=(whole, rows, rows), out_specs=whole)
    jax.eval_shape(jax.grad(split), variables, SOURCE, TARGET)
    if name == "luong":
        variables = jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)
        wide = jax.jit(jax.shard_map(
            model.apply, mesh=mesh, in_specs=(whole, rows, rows), out_specs=rows
        ))  # fmt: skip
        want = jax.jit(model.apply)(variables, SOURCE, TARGET)
        np.testing.assert_allclose(wide(variables, SOURCE, TARGET), want, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_other_rows_than_the_memory_is_refused(name):
    model = MODELS[name]()
    variables = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    variables = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), variables)
    memory = model.apply(variables, SOURCE, method="encode")

    def step(tokens, mutable=("cache", "static"), **cache):
        options = {"decode": True, "mutable": list(mutable), "method": "decode"}
        return model.apply(variables | cache, memory, tokens, **options)

    _, cache = step(TARGET[:, :1])
    with pytest.raises(ValueError, match="tokens need as many rows as the memory and the cache"):
        step(TARGET[:1, :1], **cache)
