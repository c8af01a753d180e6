"""`attnlab.over`: what attends over a mesh computes its own rows, and the same as one device."""

import itertools
import json
import os
import re
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import biases, masks, routes, scores
from attnlab.devices import split
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import TransformerConfig
from attnlab.ops.kernels.pallas import Pallas
from tests.daily import daily
from tests.several import run_python
from tests.trees import assert_close

P = jax.P
BATCH, LENGTH, HEADS, WIDTH = 4, 14, 4, 8
Q, K, V, DCONTEXT = (
    np.random.default_rng(0).normal(size=(4, BATCH, LENGTH, HEADS, WIDTH)).astype("f")
)
LENGTHS = np.array([14, 5, 0, 9])
W = np.random.default_rng(1).normal(size=(HEADS, WIDTH)).astype("f")
KEY = jax.random.key(7)
LSH = routes.LSH(num_hashes=2, num_buckets=4, chunk_size=4, implementation="sorted")


def relative(w):
    return biases.Relative(w[:, :1] * jnp.sin(jnp.arange(2 * LENGTH - 1.0))[None])


def sum_of_choice(choice):
    return choice.context + (choice.log_prob * choice.entropy)[..., None]


# Functions of q, k, v, the parameters of a score and the lengths of the sequences.
FUNCTIONS = {
    "additive": lambda q, k, v, w, n: attnlab.additive_attention(
        q, k, v, w, mask=masks.Padding(n), implementation="blockwise"
    ),
    "dropped": lambda q, k, v, w, n: attnlab.attention(
        scores.General(w[:, :, None] * w[:, None]), q, k, v,
        mask=masks.Causal() & masks.Padding(n), dropout_rate=0.5, dropout_key=KEY,
        implementation="blockwise",
    ),
    "one_kv_head": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q, k[:, :, :1], v[:, :, :1],
        mask=masks.Segments(jnp.arange(LENGTH) // 5), bias=w[:, :1, None], implementation="dense",
    ),
    "hard": lambda q, k, v, w, n: sum_of_choice(attnlab.hard_attention(
        q, k[:, :, :2], v[:, :, :2], score=scores.Additive(w), mask=masks.Padding(n),
        sample_key=KEY, expected_rate=0.5, straight_through=True,
    )),
    "window": lambda q, k, v, w, n: attnlab.window_attention(q, k, v, window=(3, 1)),
    "relative": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q, k, v, mask=masks.Causal(), bias=relative(w), implementation="blockwise"
    ),
    "lsh": lambda q, k, v, w, n: LSH(
        scores.Dot(), q, q, v, mask=masks.Causal() & masks.Padding(n, n),
        dropout_rate=0.5, dropout_key=KEY, hash_key=KEY,
    ),
    "lsh_shared_rotations": lambda q, k, v, w, n: routes.LSH(
        2, num_buckets=4, chunk_size=4, shared_rotations=True, implementation="dense",
        centering="running",
    )(scores.Dot(), q, q, v[:, :, :2], mask=masks.Padding(n)),
    "lsh_cross": lambda q, k, v, w, n: routes.LSH(2, num_buckets=4, chunk_size=4, shared_qk=False)(
        scores.Dot(), q, k[:, :, :2], v[:, :, :2], mask=masks.Padding(n), hash_key=KEY
    ),
    "kernel": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q, k, v, mask=masks.Causal() & masks.Padding(n),
        implementation=Pallas(interpret=True),
    ),
}  # fmt: skip
# One head, or three, which two devices do not divide: positions go round a ring.
RINGS = {
    "additive": lambda q, k, v, w, n: attnlab.additive_attention(
        *(x[:, :, :1] for x in (q, k, v)), w[:1], mask=masks.Causal() & masks.Padding(n),
        dropout_rate=0.5, dropout_key=KEY, implementation="blockwise",
    ),
    "hard": FUNCTIONS["hard"],
    "window": lambda q, k, v, w, n: attnlab.window_attention(
        q[:, :, :3], k[:, :, 1:], v[:, :, 1:], window=(3, 1), mask=masks.Padding(n, n)
    ),
    "two_lengths": lambda q, k, v, w, n: attnlab.attention(
        scores.General(w[:1, :, None] * w[:1, None]),
        q[:, :, :1], k[:, :12, :1], v[:, :12, :1],
        mask=masks.from_padding(jnp.arange(12) != n[0]), bias=w[:1, :1, None],
    ),
    "bias": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q[:, :, :3], k[:, :, :3], v[:, :, :3], mask=masks.Causal() & masks.Padding(n),
        bias=jnp.sin(jnp.arange(LENGTH**2)).reshape(1, LENGTH, LENGTH) * w[:3, :1, None],
    ),
    "relative": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q[:, :, :3], k[:, :, :3], v[:, :, :3], mask=masks.Causal() & masks.Padding(n),
        bias=relative(w[:3]),
    ),
    "bias_of_keys": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(), q[:, :, :1], k[:, :, :1], v[:, :, :1], mask=masks.Causal(),
        bias=jnp.repeat(w, 2, axis=1)[:, None, None, :LENGTH],
    ),
    "segments": lambda q, k, v, w, n: attnlab.attention(
        scores.Dot(1.0), q[:, :, :3], k[:, :, :1], v[:, :, :1],
        mask=masks.Segments(jnp.arange(LENGTH) // 5) & masks.Causal(),
    ),
    "all_pairs": lambda q, k, v, w, n: attnlab.attention(
        scores.Cosine(w[:1, 0]), q[:, :, :1], k[:, :, :1], v[:, :, :1]
    ),
    # Hash rounds are shared; some tokens see only themselves.
    "lsh": lambda q, k, v, w, n: routes.LSH(2, num_buckets=8, chunk_size=4)(
        scores.Dot(), q[:, :, :1], q[:, :, :1], v[:, :, :1],
        mask=masks.Causal() & masks.Padding(n, n), dropout_rate=0.5, dropout_key=KEY,
    ),
    "lsh_three_rounds": lambda q, k, v, w, n: routes.LSH(3, num_buckets=8, chunk_size=4)(
        scores.Dot(), q[:, :, :1], q[:, :, :1], v[:, :, :1]
    ),
    "lsh_multiset": lambda q, k, v, w, n: routes.LSH(
        4, num_buckets=4, chunk_size=3, shared_rotations=True,
        options=attnlab.LSHOptions(union=False),
    )(
        scores.Dot(), q[:, :, :3], q[:, :, :3], v[:, :, :1],
        mask=masks.Segments(jnp.arange(LENGTH) // 5),
    ),
}  # fmt: skip
FUNCTIONS |= {
    # Of as many heads as DCONTEXT has.
    f"ring_{name}": lambda *x, attend=attend: jnp.tile(attend(*x), (1, 1, HEADS, 1))[:, :, :HEADS]
    for name, attend in RINGS.items()
}
SPLITS = {
    "batch": P("x"),
    "heads": P(None, None, "x"),
    "length": P(None, "x"),
}


def context_and_grads(name):
    def run(q, k, v, w, lengths):
        context, pull_back = jax.vjp(
            lambda q, k, v, w: FUNCTIONS[name](q, k, v, w, lengths), q, k, v, w
        )
        return context, pull_back(jnp.asarray(DCONTEXT))

    return run


def mesh_of_two(axis="x"):
    return jax.make_mesh((2,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize(
    ("name", "divides"),
    daily(
        [
            *itertools.product([name for name in FUNCTIONS if "ring" not in name], SPLITS),
            *((f"ring_{name}", "length") for name in RINGS if "three" not in name),
        ],
        ("additive", "heads"),
        ("one_kv_head", "heads"),
        ("lsh", "length"),
        ("ring_additive", "length"),
    ),
)
def test_two_devices_compute_what_one_does(name, divides):
    mesh = mesh_of_two()
    specs = [*[SPLITS[divides]] * 3, P(), P()]
    placed = [
        jax.device_put(x, jax.NamedSharding(mesh, spec))
        for x, spec in zip((Q, K, V, W, LENGTHS), specs, strict=True)
    ]
    step = jax.jit(context_and_grads(name))
    expected = step(Q, K, V, W, LENGTHS)
    with attnlab.over(mesh, **{divides: "x"}):
        compiled = step.lower(*placed).compile()
    one_head = f"{BATCH},{LENGTH},1,{WIDTH}"  # of keys or values, which each device needs
    allowed = {one_head} if (name, divides) == ("one_kv_head", "length") else set()
    assert set(gathered(compiled.as_text())) <= allowed, "activations travel"
    found = compiled(*placed)
    assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if divides == "length":
        assert compiled.output_shardings[0].spec[1] == "x"


def gathered(hlo: str) -> list[str]:
    """The results of all-gathers that are larger than a parameter: activations, or their order."""
    # One may have several results, and be started and awaited apart.
    gathers = re.findall(r" = (.*?) all-gather(?:-start)?\(", hlo)
    found = [x for results in gathers for x in re.findall(r"\w+\[([\d,]+)\]", results)]
    return [x for x in found if np.prod([int(n) for n in x.split(",")]) > W.size]


@pytest.mark.parametrize("divides", daily(["batch", "heads"], "heads"))
def test_decoding_by_hash_divides_the_cache(divides):
    mesh, route = mesh_of_two(), routes.LSH(2, num_buckets=4, chunk_size=4)
    state = route.empty_state(jnp.asarray(K))
    step = jax.jit(lambda k, v, state, q: route.decode(scores.Dot(), q, k, v, state, q_offset=3))
    expected, _ = step(K, V, state, K[:, 3:4])
    placed = [jax.device_put(x, jax.NamedSharding(mesh, SPLITS[divides])) for x in (K, V)]
    of_state = P("x") if divides == "batch" else P(None, "x")
    state = jax.tree.map(lambda x: jax.device_put(x, jax.NamedSharding(mesh, P())), state)
    latest = jax.device_put(state.latest, jax.NamedSharding(mesh, of_state))
    with attnlab.over(mesh, **{divides: "x"}):
        compiled = step.lower(*placed, state.replace(latest=latest), K[:, 3:4]).compile()
    assert not gathered(compiled.as_text())
    new = jax.device_put(K[:, 3:4], compiled.input_shardings[0][3])
    state = jax.device_put(state, compiled.input_shardings[0][2])
    np.testing.assert_allclose(compiled(*placed, state, new)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_reversible_model_is_divided_in_its_backward_pass_too():
    """Which is traced after the context of the forward pass is left."""
    mesh = mesh_of_two()
    config = TransformerConfig(5, num_layers=1, width=4, hidden=4, num_heads=2, dropout_rate=0.0)
    model = Reformer(config, attention=attnlab.LSHSelfAttention(2, route=LSH))
    tokens = jax.device_put(np.ones((2, 8), np.int32), jax.NamedSharding(mesh, P("x")))
    variables = jax.eval_shape(model.init, jax.random.key(0), np.ones((2, 8), np.int32))

    def loss(variables, tokens):
        with attnlab.over(mesh, batch="x"):
            return model.apply(variables, tokens).sum()

    jax.jit(jax.grad(loss)).lower(variables, tokens)  # refused where a part of it is not divided


def test_a_ring_counts_in_32_bits_where_64_are_allowed(x64):
    with attnlab.over(mesh_of_two(), length="x"):
        jax.eval_shape(RINGS["additive"], Q, K, V, W, jnp.asarray(LENGTHS, jnp.int64))


def test_nothing_is_nothing_in_a_ring():
    with attnlab.over(mesh_of_two(), length="x"):
        context = attnlab.attention(scores.Dot(), Q[:0, :, :1], K[:0, :, :1], V[:0, :, :1])
    assert context.shape == (0, LENGTH, 1, WIDTH)


@pytest.mark.slow
def test_more_axes_at_once_and_whole_models_on_four_devices():
    """See the script for what it runs; each pair is (largest difference, allowed)."""
    told = {"JAX_NUM_CPU_DEVICES": "4", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = json.loads(run_python("-m", "tests.devices.split_script", env=os.environ | told))
    assert len(found) == 11
    assert {name: x for name, (x, allowed) in found.items() if not x <= allowed} == {}


def test_lsh_is_not_computed_on_every_device_unasked():
    mesh = mesh_of_two()
    q = jax.device_put(Q, jax.NamedSharding(mesh, P("x")))
    attend = jax.jit(lambda q: LSH(scores.Dot(), q, q, q))
    message = (
        r"^LSH attention compiled for 2 devices would be computed in full on each; say what they "
        r'share: with attnlab\.over\(mesh, batch="data", heads="model"\), axes of your mesh(\n|$)'
    )
    with pytest.raises(NotImplementedError, match=message):
        attend(q)
    with attnlab.over(mesh):  # asked for
        whole = attend(q)
    np.testing.assert_allclose(whole, attend(Q), rtol=1e-5, atol=1e-6)
    mapped = jax.shard_map(attend, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    with attnlab.over(mesh, batch="x"):  # one device's already
        np.testing.assert_allclose(jax.jit(mapped)(q), whole, rtol=1e-5, atol=1e-6)
    explicit = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    q = jax.device_put(Q, jax.NamedSharding(explicit, P()))
    np.testing.assert_allclose(attend(q), whole, rtol=1e-5, atol=1e-6)


def test_a_shard_map_over_a_part_of_the_mesh_is_told_to_take_all_of_it():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 2), ("y", "x"), axis_types=auto)
    attend = jax.shard_map(
        lambda q: LSH(scores.Dot(), q, q, q),
        mesh=mesh,
        in_specs=P("y"),
        out_specs=P("y"),
        axis_names={"y"},
    )
    q = jax.device_put(Q, jax.NamedSharding(mesh, P("y")))
    message = r"for 2 devices .*inside a shard_map .* over the whole mesh, also 'x'(\n|$)"
    with attnlab.over(mesh, heads="x"), pytest.raises(NotImplementedError, match=message):
        jax.jit(attend)(q)


def test_a_kernel_is_not_computed_on_every_device_unasked():
    q = jax.device_put(Q, jax.NamedSharding(mesh_of_two(), P("x")))
    attend = jax.jit(
        lambda q: attnlab.attention(scores.Dot(), q, q, q, implementation=Pallas(interpret=True))
    )
    with pytest.raises(NotImplementedError, match="^attention compiled for 2 devices would be"):
        attend(q)


def attend_over(q=Q, k=Q, function="window", **axes):
    with attnlab.over(mesh_of_two(), **axes):
        return jax.eval_shape(lambda: FUNCTIONS[function](q, k, k, W, LENGTHS[: len(q)]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend_over(batch="y"), r"batch='y' is no axis of the mesh: 'x'"),
        (lambda: attend_over(batch="x", heads="x"), "an axis divides one thing; got 'x' twice"),
        (
            lambda: attend_over(Q[:3], Q[:3], batch="x"),
            r"attention: 3 examples cannot be shared evenly by 2 devices, over\(mesh, batch='x'\);"
            " make them a multiple of 2, or share them over fewer",
        ),
        (
            lambda: attend_over(Q[:, :, :3], Q[:, :, :3], "lsh", heads="x"),
            r"hashing: 3 heads cannot be shared evenly by 2 devices, over\(mesh, heads='x'\)",
        ),
        (
            lambda: attend_over(Q[:, :13], Q[:, :13], length="x"),
            r"a sequence of 13 positions cannot be shared evenly by 2 devices, over\(mesh, length",
        ),
        (
            lambda: attend_over(Q, Q, "ring_lsh_three_rounds", length="x"),
            r"LSH attention: 1 heads × 3 rounds cannot be shared evenly by 2 devices, over\(mesh,"
            r" length='x'\): 2 would share the rounds of a head; make num_hashes a multiple of 2",
        ),
        (
            lambda: attnlab.over(jax.make_mesh((2,), ("x",))).__enter__(),
            r"over\(mesh\) divides the work on Auto axes; got Explicit ones, arrays on which",
        ),
        (lambda: attnlab.over("x").__enter__(), r"mesh must be a mesh; got 'x' \(jax.sharding"),
    ],
)  # fmt: skip
def test_refuses_what_devices_cannot_share(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_belongs_to_one_thread():
    context, left, caught = attnlab.over(mesh_of_two(), batch="x"), threading.Event(), []

    def enter():
        context.__enter__()
        left.wait()  # a thread that has ended lends its name to the next

    def leave():
        try:
            context.__exit__(None, None, None)
        except RuntimeError as error:
            caught.append(str(error))
        left.set()

    threads = [threading.Thread(target=enter), threading.Thread(target=leave)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert caught == ["over(mesh) belongs to one thread; it was left in another (enter it in each)"]
    assert split.current() is None
