"""The modules on two devices: sharded by logical axes, and mapped by `jax.pmap`."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from attnlab import LocalAttention, LSHSelfAttention, MultiHeadAttention, routes
from tests.modules.reference import apply
from tests.modules.test_conventions import MODULES, TABLE, flat, inputs

HEADS = PartitionSpec("embed", "heads", "head_dim")
HIDDEN = PartitionSpec("embed", "hidden")
NOWHERE = PartitionSpec()
RULES = (("heads", "model"), ("hidden", "model"), ("embed", None), ("head_dim", None))

SPECS = {
    "additive": {"query/kernel": HIDDEN, "key/kernel": HIDDEN, "score/kernel": NOWHERE},
    "britz": {"query/kernel": HIDDEN, "key/kernel": HIDDEN},
    "local_p": {
        "score/kernel": NOWHERE,
        "center_hidden/kernel": HIDDEN,
        "center/kernel": PartitionSpec("hidden", None),
    },
    "multi_head": {
        "query/kernel": HEADS,
        "query/bias": NOWHERE,
        "key/kernel": HEADS,
        "key/bias": NOWHERE,
        "value/kernel": HEADS,
        "value/bias": NOWHERE,
        "query_norm/scale": NOWHERE,
        "key_norm/scale": NOWHERE,
        "out/kernel": PartitionSpec("heads", "head_dim", "embed"),
        "out/bias": NOWHERE,
    },
    "lsh": {
        "query_key/kernel": HEADS,
        "query_key_norm/scale": NOWHERE,
        "value/kernel": HEADS,
        "out/kernel": PartitionSpec("heads", "head_dim", "embed"),
    },
}


@pytest.mark.parametrize("name", SPECS)
def test_logical_axes(name):
    module = MODULES[name].clone(logical_axes=True)
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs(name)))
    specs = nn.get_partition_spec(boxed)["params"]
    found = {
        "/".join(key.key for key in path): spec
        for path, spec in jax.tree.leaves_with_path(
            specs, is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
    }
    assert found == SPECS[name]
    shapes = {path: x.shape for path, x in flat(nn.meta.unbox(boxed)["params"]).items()}
    assert shapes == TABLE[name][1]


def test_heads_sharded_over_two_devices_compute_the_same():
    module = MultiHeadAttention(2, route=routes.AllPairs("dense"), logical_axes=True)
    x = inputs("multi_head")[0]
    mesh = Mesh(np.array(jax.devices()), ("model",))

    def make():
        return module.init(jax.random.key(0), x)

    specs = nn.get_partition_spec(jax.eval_shape(make))
    shardings = nn.logical_to_mesh_sharding(specs, mesh, RULES)
    variables = nn.meta.unbox(jax.jit(make, out_shardings=shardings)())
    kernel = variables["params"]["query"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec(None, "model", None)
    assert [piece.data.shape for piece in kernel.addressable_shards] == [(6, 1, 3)] * 2
    plain = module.clone(logical_axes=False)
    whole = jax.device_put(jax.device_get(variables))
    np.testing.assert_allclose(
        apply(module, variables, x), apply(plain, whole, x), rtol=1e-5, atol=1e-6
    )
    alone = jax.jit(lambda: plain.init(jax.random.key(0), x))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), alone, whole)


def test_modules_are_data_to_flax():
    """Equal when built equal, hashable, and printable: what jit and config code rely on."""
    for make in (
        lambda: MultiHeadAttention(2, route=routes.Window(2, 1)),
        lambda: LSHSelfAttention(2, route=routes.LSH(chunk_size=4)),
        lambda: LocalAttention(half_width=2),
    ):
        assert make() == make() and hash(make()) == hash(make())
        assert make() != make().clone(dropout_rate=0.5)
