"""Weights of others by name: what is written has torch's layout, and is read again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.models.hugging_face import Place, dense, norm, read, table, write

PLACES = {
    "layer": {"query": dense("x.query", (5,), (2, 3)), "out": dense("x.out", (2, 3), (5,))},
    "norm": norm("x.norm", 7),
    "next": dataclasses.replace(table("next", 3, 2), reversed=True),
    "axial": Place("x.axial", (7, 1, 5), (7, 5)),
}


def assert_same(got, true):
    assert got.keys() == true.keys()
    for name, x in got.items():
        np.testing.assert_array_equal(x, true[name], err_msg=name)


def test_what_is_written_has_torchs_layout_and_is_read_again():
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda place: draw.normal(size=place.ours), PLACES)
    weights = write(PLACES, params)
    x, heads = draw.normal(size=5), draw.normal(size=(2, 3))
    query, out = params["layer"]["query"], params["layer"]["out"]
    there = weights["x.query.weight"] @ x + weights["x.query.bias"]
    here = np.tensordot(x, query["kernel"], 1) + query["bias"]
    np.testing.assert_allclose(there.reshape(2, 3), here)
    there = weights["x.out.weight"] @ heads.reshape(-1)
    np.testing.assert_allclose(there, np.tensordot(heads, out["kernel"], 2))
    np.testing.assert_array_equal(weights["next"][:, 0], params["next"][:, 1])
    saved = {name.removeprefix("x."): x for name, x in weights.items()} | {"old.ids": np.ones(3)}
    again = read(PLACES, saved, np.float64, prefix="x.", besides=("ids",))
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_what_is_written_is_a_copy_that_torch_can_have():
    params = jax.tree.map(lambda place: jnp.ones(place.ours, jnp.bfloat16), PLACES)
    weights = write(PLACES, params)
    assert all(x.dtype == np.float32 and x.flags.writeable for x in weights.values())
    kept = write(PLACES, jax.tree.map(lambda x: x.astype(jnp.float32), params))
    assert all(x.flags.writeable for x in kept.values())
