"""The kernels that others maintain: used where they serve, refused elsewhere, and equal to ours."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, scores
from attnlab.ops.attention import attention
from attnlab.ops.kernels import splash
from attnlab.ops.kernels.call import Call
from attnlab.ops.kernels.options import Pallas
from attnlab.platforms import Platform, compiling_for

H100 = Platform("cuda", "NVIDIA H100 80GB HBM3", (9, 0))
V5E = Platform("tpu", "TPU v5 lite")
SHAPES = {"q": (2, 64, 4, 64), "k": (2, 64, 2, 64), "v": (2, 64, 2, 64)}
LONG = {name: (shape[0], 128, *shape[2:]) for name, shape in SHAPES.items()}


def arrays(dtype=jnp.bfloat16, **shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=x), dtype) for x in (SHAPES | shapes).values()]


def stand_in(used, original):
    """The same function of JAX by XLA, for cuDNN, which is not here."""

    def attend(*args, implementation, **kwargs):
        used.append(implementation)
        return original(*args, implementation="xla", **kwargs)

    return attend


@pytest.mark.parametrize(
    ("score", "shapes", "options", "reason"),
    [
        (scores.Dot(), {}, {}, None),
        (scores.Dot(0.5), {}, {"mask": masks.Causal()}, None),
        (scores.Dot(), {"q": (2, 32, 4, 64)}, {"mask": masks.Causal()}, None),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0)}, None),
        (scores.Additive(jnp.ones(64)), {}, {}, "dot score only, not Additive"),
        (scores.Cosine(), {}, {}, "dot score only, not Cosine"),
        (scores.Dot(), {"v": (2, 64, 2, 32)}, {}, "equal widths.*got 64 and 32"),
        (scores.Dot(), {n: (*s[:3], 60) for n, s in SHAPES.items()}, {}, "multiple of 8.*got 60"),
        (scores.Dot(), {n: (*s[:3], 136) for n, s in SHAPES.items()}, {}, "up to 128; got 136"),
        (scores.Dot(), {}, {"bias": jnp.zeros((64, 64))}, "no bias and no dropout"),
        (scores.Dot(), {}, {"dropout_rate": 0.1}, "no bias and no dropout"),
        (scores.Dot(), {}, {"mask": masks.Causal(3)}, "no mask of type Causal"),
        (scores.Dot(), {}, {"mask": masks.Causal(jnp.array([0, 0]))}, "no mask of type Causal"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 2)}, r"window \(left, 0\)"),
        (scores.Dot(), {}, {"mask": masks.Window(None, 0)}, r"window \(left, 0\)"),
        (scores.Dot(), {"q": (2, 32, 4, 64)}, {"mask": masks.Window(5, 0)}, "as many queries"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0, 1)}, "no mask of type Window"),
        (scores.Dot(), {}, {"mask": masks.Padding(3)}, "no mask of type Padding"),
        (scores.Dot(), {}, {"mask": masks.Causal() & masks.Padding(3)}, "of type Both"),
    ],
)
def test_cudnn_is_used_where_it_serves_and_refused_elsewhere(
    score, shapes, options, reason, monkeypatch, quick_compile
):
    used = []
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", stand_in(used, jax.nn.dot_product_attention)
    )
    q, k, v = arrays(**shapes)
    call = functools.partial(attention, score, q, k, v, **options, dropout_key=jax.random.key(0))
    with compiling_for(H100):
        if reason is None:
            plain = call(implementation="dense")
            for implementation in (None, "cudnn"):
                np.testing.assert_allclose(
                    call(implementation=implementation).astype(jnp.float32),
                    plain.astype(jnp.float32),
                    atol=0.03,
                )
            assert used == ["cudnn", "cudnn"]
        else:
            with pytest.raises(
                NotImplementedError, match=f'"cudnn".*{reason}.*"blockwise" or None'
            ):
                call(implementation="cudnn")
            jax.eval_shape(lambda: call(implementation=None))
            assert used == []


def test_float32_is_for_none_of_them():
    for platform, name in ((H100, "cudnn"), (V5E, "splash")):
        with compiling_for(platform), pytest.raises(NotImplementedError, match="not float32"):
            attention(scores.Dot(), *arrays(jnp.float32, **LONG), implementation=name)


def test_they_are_for_their_accelerator():
    q, k, v = arrays(**LONG)
    for name in ("cudnn", "splash"):
        with pytest.raises(NotImplementedError, match=f'"{name}" is for .*, not for cpu; use'):
            attention(scores.Dot(), q, k, v, implementation=name)


IDS = jnp.array([[0] * 40 + [5] * 100 + [2] * 60, [7] * 200])
SERVED = {
    "all pairs, more keys": (None, 200, 300),
    "causal and segments": (masks.Causal() & masks.Segments(IDS), 200, 200),
    "a window": (masks.Window(30, 5), 200, 200),
}


@pytest.mark.parametrize("name", SERVED)
def test_splash_is_the_same_function(name, quick_compile):
    """In Pallas' interpret mode, with lengths that are no multiple of its blocks."""
    mask, num_queries, num_keys = SERVED[name]
    q, k, v = arrays(q=(2, num_queries, 4, 64), k=(2, num_keys, 2, 64), v=(2, num_keys, 2, 64))
    call = Call(
        scores.Dot(), q, k, v, mask, None, 0.0, None, platform=V5E, pallas=Pallas(interpret=True)
    )
    assert splash.refusal(call) is None

    def by_splash(q, k, v):
        return splash.attend(Call(**(vars(call) | {"q": q, "k": k, "v": v})))

    def densely(q, k, v):
        return attention(scores.Dot(), q, k, v, mask=mask, implementation="dense")

    out, pull_back = jax.vjp(by_splash, q, k, v)
    exact = [x.astype(jnp.float32) for x in (q, k, v)]
    true_out, true_pull_back = jax.vjp(densely, *exact)
    plain_out, plain_pull_back = jax.vjp(densely, q, k, v)
    got, plain, true = (
        (o, *pull(jnp.ones_like(o)))
        for o, pull in ((out, pull_back), (plain_out, plain_pull_back), (true_out, true_pull_back))
    )
    for x, y, z in zip(got, plain, true, strict=True):
        assert x.shape == z.shape and x.dtype == jnp.bfloat16
        error, allowed = (jnp.abs(a.astype(jnp.float32) - z).max() for a in (x, y))
        assert error <= 2 * allowed + 2**-8 * jnp.abs(z).max()


@pytest.mark.parametrize(
    ("shapes", "options", "reason"),
    [
        (SHAPES, {}, "at least 128 queries and keys; got 64"),
        (LONG, {"mask": masks.Padding(3)}, "no mask of type Padding"),
        (LONG, {"mask": masks.Causal(1)}, "no q_offset"),
        (LONG | {"q": (2, 256, 4, 64)}, {"mask": masks.Causal()}, "as many queries as keys"),
        (LONG, {"mask": masks.Segments(IDS[:, :128], IDS[:, :128])}, "without kv_ids"),
        (LONG, {"bias": jnp.zeros((128, 128))}, "no bias"),
    ],
)
def test_splash_refuses(shapes, options, reason):
    with compiling_for(V5E), pytest.raises(NotImplementedError, match=f'"splash".*{reason}'):
        attention(scores.Dot(), *arrays(**shapes), **options, implementation="splash")


def test_splash_is_used_by_name_only(monkeypatch):
    """XLA cannot partition it, so that a model under `jit` over a mesh could not be compiled."""
    used = []
    monkeypatch.setattr(splash, "attend", lambda call: used.append(call.mask) or call.q)
    with compiling_for(V5E):
        attention(scores.Dot(), *arrays(**LONG), mask=masks.Causal())
        attention(scores.Dot(), *arrays(**LONG), mask=masks.Causal(), implementation="splash")
    assert used == [masks.Causal()]


def test_tokamax_is_asked_for_what_it_is_to_compute(monkeypatch, quick_compile):
    """With a stand-in of that name that calls JAX's own function."""
    used = []
    original = stand_in(used, jax.nn.dot_product_attention)

    def attend(*args, precision, **kwargs):
        return original(*args, **kwargs)

    fake = types.ModuleType("tokamax")
    fake.dot_product_attention = attend
    fake.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "tokamax", fake)
    q, k, v = arrays()
    for mask in (None, masks.Causal(), masks.Window(5, None)):
        plain = attention(scores.Dot(0.3), q, k, v, mask=mask, implementation="dense")
        with compiling_for(H100):
            got = attention(scores.Dot(0.3), q, k, v, mask=mask, implementation="tokamax")
        np.testing.assert_allclose(got.astype(jnp.float32), plain.astype(jnp.float32), atol=0.03)
    assert used == ["mosaic"] * 3
    for mask, reason in ((masks.Padding(3), "type Padding"), (masks.Causal(1), "no q_offset")):
        with compiling_for(H100), pytest.raises(NotImplementedError, match=reason):
            attention(scores.Dot(), q, k, v, mask=mask, implementation="tokamax")
    with pytest.raises(NotImplementedError, match="not for cpu"):
        attention(scores.Dot(), q, k, v, implementation="tokamax")


def test_tokamax_that_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with compiling_for(H100), pytest.raises(NotImplementedError, match="pip install tokamax"):
        attention(scores.Dot(), *arrays(), implementation="tokamax")
