"""What all recurrent models have in common: their sizes, and a batch divided by `jax.shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.core.tokens import rows_of
from attnlab.models import Britz, Luong, NMTAttn, RNNEncDec, RNNSearch

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


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("search", "maxout_features"),
        ("search", "align_features"),
        ("enc-dec", "hidden_features"),
        ("luong", "num_layers"),
        ("luong", "max_source_length"),
        ("britz", "attention_features"),
        ("britz", "encoder_layers"),
        ("britz, none-state", "decoder_layers"),
        ("nmt-attn", "num_decoder_layers"),
    ],
)
def test_sizes_count_something(name, size):
    model = MODELS[name](**{size: 0})
    rule = rf"{type(model).__name__}\.{size} must be an int ≥ 1; got 0"
    with pytest.raises(ValueError, match=rule):
        jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (None, TARGET, "source must be an array of numbers; got None"),
        (SOURCE[0], TARGET, r"source must be token ids, .*got int32 \(3,\) \(give .* source\[None"),
        (SOURCE[:, :0], TARGET, r"T ≥ 1; got int32 \(2, 0\)"),
        (SOURCE, TARGET[:, :0], r"target must be .* T ≥ 1; got int32 \(2, 0\)"),
        (SOURCE + 0.5, TARGET, "source must be token ids, integers .*got float32"),
        (SOURCE, TARGET > 3, "target must be token ids, integers .*got bool"),
        (SOURCE[:1], TARGET, r"one target; got source \(1, 3\) and target \(2, 4\)"),
    ],
)
def test_what_is_no_batch_of_tokens_is_refused(source, target, message):
    model = MODELS["luong, not fed"](window="global", score=None)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.init, jax.random.key(0), source, target)


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
    with pytest.raises(ValueError, match="decode=True writes the cache; got a call that may not"):
        step(TARGET[:, :1], mutable=("static",), **cache)


def test_ids_that_are_not_integers_are_refused_wherever_they_are_read():
    with pytest.raises(ValueError, match="ids must be integers; got float32 .cast them"):
        rows_of(jnp.ones((5, 3)), SOURCE + 0.9)
