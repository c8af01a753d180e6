"""Models and several axes of a mesh of 4 CPU devices against one device; prints JSON.

A process of its own, because the tests' has two devices: JAX_NUM_CPU_DEVICES=4. Each name has the
largest difference, relative to the largest number, and what is allowed.
"""

import dataclasses
import json
import math
import warnings

import flax.linen as nn
import jax
import numpy as np

import attnlab
from attnlab import routes, scores
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from attnlab.training.step import TrainState, make_train_step

P = jax.P
MESH = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
TOKENS = np.random.default_rng(0).integers(1, 13, (4, 16))
LSH = routes.LSH(num_hashes=2, num_buckets=4, chunk_size=4)


ALL = ("data", "model")
CONFIG = TransformerConfig(13, num_layers=1, width=16, hidden=24, num_heads=4, dropout_rate=0.3)
HASHED = attnlab.LSHSelfAttention(4, route=LSH, dropout_rate=0.3)
MODELS = {
    "transformer": (TransformerLM(CONFIG), {"batch": "data", "length": "model"}),
    "transformer, lsh": (
        TransformerLM(CONFIG, attention=HASHED),
        {"batch": "data", "heads": "model"},
        {"length": ALL},
    ),
    "one head, in a ring": (
        TransformerLM(dataclasses.replace(CONFIG, num_heads=1)),
        {"length": ALL[::-1]},
    ),
    "two heads × two rounds": (
        TransformerLM(
            dataclasses.replace(CONFIG, num_heads=2), attention=HASHED.clone(num_heads=2)
        ),
        {"length": ALL},
    ),
    "reformer": (
        Reformer(CONFIG, attention=HASHED),
        {"batch": ALL},
        {"batch": "data", "length": "model"},
    ),
}


def value_and_grad(model: nn.Module):
    def loss(variables, tokens):
        logits = model.apply(
            variables, tokens, deterministic=False, rngs={"dropout": jax.random.key(3)}
        )
        return (jax.nn.log_softmax(logits)[..., 0]).mean()

    return jax.jit(jax.value_and_grad(loss))


def difference(found, expected) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max() / (np.abs(b).max() + 1e-9)) for a, b in pairs)


def trained(sizes: dict[str, int]):
    """The parameters after two steps on a mesh of these sizes, the state divided."""
    parallel = parallel_over("jit", jax.devices()[: math.prod(sizes.values())], sizes)
    model, _ = MODELS["transformer"]
    optimizer = OptimizerSettings(learning_rate=0.01).build(2)
    batch = {"tokens": TOKENS}
    create = lambda: TrainState.create(model, optimizer, batch, seed=0)  # noqa: E731
    out = parallel.shardings(jax.eval_shape(create)), parallel.whole
    step = make_train_step(model, TokenCrossEntropy(), optimizer)
    step = parallel.compile(step, donate=True, out=out)
    state = parallel.make(create)
    assert difference(jax.device_get(state.params), create().params) < 1e-6
    whole = sum(x.nbytes for x in jax.tree.leaves(state))
    here = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert len(parallel.mesh.devices.flat) == 1 or here < 0.6 * whole, (sizes, here, whole)
    for _ in range(2):
        state, _ = step(state, parallel.split(batch))
    return jax.device_get(state.params)


def gradient_of_a_shared_matrix(q, k, w):
    """Of queries divided by positions, whose products attention divides by heads."""
    attend = lambda w: attnlab.attention(scores.General(w), q, k, k)  # noqa: E731
    return jax.grad(lambda w: (attend(w) ** 2).sum())(w)


def main() -> None:
    found = {}
    arrays = np.random.default_rng(1).normal(size=(3, 4, 16, 4, 7)).astype("f")
    q, k, w = arrays[0], arrays[1], arrays[2, 0, :7, 0]
    placed = [jax.device_put(x, jax.NamedSharding(MESH, P(*ALL))) for x in (q, k)]
    step = jax.jit(gradient_of_a_shared_matrix)
    expected = step(q, k, w)
    for axis in ("length", "heads"):
        with attnlab.over(MESH, batch="data", **{axis: "model"}):
            found[f"shared matrix, {axis}"] = difference(step(*placed, w), expected), 1e-5
    for name, (model, *splits) in MODELS.items():
        variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
        step = value_and_grad(model)
        expected = jax.device_get(step(variables, TOKENS))
        for axes in splits:
            rows = jax.NamedSharding(MESH, P(axes.get("batch"), axes.get("length")))
            whole = jax.NamedSharding(MESH, P())
            placed = jax.device_put(variables, whole), jax.device_put(TOKENS, rows)
            with attnlab.over(MESH, **axes):
                got = jax.device_get(step(*placed))
            found[f"{name}, {axes}"] = difference(got, expected), 1e-5
    on_one_device = trained({"data": 1})
    for sizes in ({"data": 2, "model": 2}, {"model": 2, "sequence": 2}):
        found[f"training, {sizes}"] = difference(trained(sizes), on_one_device), 1e-5
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("error")
    jax.config.update("jax_disable_most_optimizations", True)
    main()
