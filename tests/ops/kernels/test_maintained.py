"""The kernels that others maintain: used where they serve, refused elsewhere, and equal to ours."""

import functools
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks

from attnlab import masks, scores
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops import routes
from attnlab.ops.attention import attention
from attnlab.ops.kernels import splash
from attnlab.ops.kernels.call import Call
from attnlab.ops.kernels.options import Pallas
from attnlab.ops.local import window_attention
from attnlab.platforms import Platform, compiling_for

H100 = Platform("cuda", "NVIDIA H100 80GB HBM3", (9, 0))
V5E = Platform("tpu", "TPU v5 lite")
SHAPES = {"q": (2, 64, 4, 64), "k": (2, 64, 2, 64), "v": (2, 64, 2, 64)}
LONG = {name: (shape[0], 128, *shape[2:]) for name, shape in SHAPES.items()}


def arrays(dtype=jnp.bfloat16, **shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=x), dtype) for x in (SHAPES | shapes).values()]


def small(queries=23, keys=23):
    return arrays(q=(2, queries, 4, 8), k=(2, keys, 2, 8), v=(2, keys, 2, 8))


def as_cudnn(asked):
    """What cuDNN makes of what `jax.nn` is given, by XLA.

    Its window bounds the past alone. Rows behind a length are undefined, and those without a key.
    """
    by_xla = jax.nn.dot_product_attention

    def attend(q, k, v, *, implementation, query_seq_lengths=None, **given):
        assert implementation == "cudnn"
        kv_lengths = given.get("key_value_seq_lengths")
        asked.append(
            {
                "causal": given["is_causal"],
                "window": given["local_window_size"],
                "lengths": None if kv_lengths is None else (query_seq_lengths, kv_lengths),
            }
        )
        if given["local_window_size"] is not None:
            given["local_window_size"] = given["local_window_size"][0], k.shape[1]
        out = by_xla(q, k, v, **given, implementation="xla")
        if query_seq_lengths is None:
            return out
        assert query_seq_lengths.dtype == kv_lengths.dtype == jnp.int32
        row = jnp.arange(q.shape[1])[None]
        defined = (row < query_seq_lengths[:, None]) & (kv_lengths > 0)[:, None]
        return jnp.where(defined[..., None, None], out, jnp.nan)

    return attend


def as_tokamax(asked):
    """The library of that name, by XLA."""
    by_xla = jax.nn.dot_product_attention

    def attend(*args, precision, implementation, **given):
        assert implementation == "mosaic"
        asked.append({"causal": given["is_causal"], "window": given["local_window_size"]})
        return by_xla(*args, **given, implementation="xla")

    found = types.ModuleType("tokamax")
    found.dot_product_attention = attend
    found.__spec__ = types.SimpleNamespace()
    return found


def as_splash(asked):
    """What `make_splash_mqa` makes, with the whole mask in memory."""

    def make(*, mask, block_sizes, **_):
        assert all(one == mask.masks[0] for one in mask.masks)
        asked.append(mask.masks[0])
        shows = mask.masks[0][:, :]

        def attend(q, k, v, ids):
            same = True if ids is None else ids.q[:, None] == ids.kv[None, :]
            s = jnp.einsum("gth,sh->gts", q, k, preferred_element_type=jnp.float32)
            p = jax.nn.softmax(jnp.where((shows & same)[None], s, -1e30), axis=-1)
            return jnp.einsum("gts,sd->gtd", p, v.astype(p.dtype)).astype(v.dtype)

        return attend

    return make


def attend(mask=None, implementation=None):
    return functools.partial(attention, scores.Dot(0.2), mask=mask, implementation=implementation)


def in_a_window(mask):
    return functools.partial(window_attention, score=scores.Dot(0.2), window=(5, 2), mask=mask)


def as_a_module(q, k, v):
    layer = MultiHeadAttention(4, num_kv_heads=2, route=routes.Window(5, 2), dtype=q.dtype)
    x = q.reshape(*q.shape[:2], -1)
    return layer.apply(layer.init(jax.random.key(0), x), x, mask=masks.Causal())


ALL, FEW = (23, 23), (3, 23)
NO_MASK = {"causal": False, "window": None}
CAUSAL = {"causal": True, "window": None}
RECENT = {"causal": True, "window": (5, 0)}
SOME_KEYS = masks.Padding(jnp.array([3, 80]))
SOME_OF_BOTH = masks.Padding(jnp.array([3, 80]), jnp.array([0, 11]))
NO_KEYS = masks.Padding(jnp.array([0, 9])) & masks.Padding(jnp.array([5, 7]))
MANY = masks.Causal() & masks.Window(5, 2) & masks.Window(9, None)
# What calls cuDNN; queries to 23 keys; what `jax.nn` is asked for, and the lengths of queries and
# of keys; what JAX tells cuDNN then, its mask and window.
BY_CUDNN = {
    "all pairs": (attend(), 23, NO_MASK, (ALL, ALL), ("PADDING", 0)),
    "causal": (attend(masks.Causal()), 23, CAUSAL, None, ("CAUSAL", 0)),
    "causal as a window": (attend(masks.Window(None, 0)), 23, CAUSAL, None, ("CAUSAL", 0)),
    "causal, few queries": (attend(masks.Causal()), 13, CAUSAL, None, ("CAUSAL", 0)),
    "causal, many queries": (
        attend(masks.Causal()), 29, CAUSAL, ((29, 29), ALL), ("PADDING_CAUSAL", 0),
    ),
    "window": (attend(masks.Window(5, 0)), 23, RECENT, None, ("CAUSAL", 6)),
    "window of one": (
        attend(masks.Window(1, 0)), 23, {"causal": True, "window": (1, 0)}, None, ("CAUSAL", 2),
    ),
    "window & causal": (attend(MANY), 23, RECENT, None, ("CAUSAL", 6)),
    "window_attention": (in_a_window(masks.Causal()), 23, RECENT, None, ("CAUSAL", 6)),
    "window_attention, two windows": (
        in_a_window(masks.Window(None, 0)), 23, RECENT, None, ("CAUSAL", 6),
    ),
    "a module": (as_a_module, 23, RECENT, None, ("CAUSAL", 6)),
    "padding": (attend(SOME_KEYS), 23, NO_MASK, (ALL, FEW), ("PADDING", 0)),
    "padding, few queries": (
        attend(masks.Padding(7)), 13, NO_MASK, ((13, 13), (7, 7)), ("PADDING", 0),
    ),
    "no keys": (attend(NO_KEYS), 23, NO_MASK, ((1, 23), (1, 7)), ("PADDING", 0)),
    "padding & causal": (
        attend(SOME_OF_BOTH & masks.Causal()), 23, CAUSAL, ((1, 11), FEW), ("PADDING_CAUSAL", 0),
    ),
}  # fmt: skip


def told_to_cudnn(call, arrays, monkeypatch):
    """(mask type, window) of each cuDNN call in the lowered program of a gradient."""
    module = "jax._src.cudnn.fused_attention_stablehlo"
    monkeypatch.setattr(f"{module}.check_cudnn_version", lambda: 91900)  # it is not installed

    def loss(*arrays):
        return call(*arrays).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss)).trace(*arrays)
    text = traced.lower(lowering_platforms=("cuda",)).as_text().replace("\\22", "")
    types, windows = (
        re.findall(rf"{key}: (\w+)", text) for key in ("mask_type", "sliding_window_length")
    )
    return [(mask, int(window)) for mask, window in zip(types, windows, strict=True)]


def output_and_gradients(call, arrays):
    out, pull_back = jax.vjp(call, *arrays)
    return out, *pull_back(jnp.cos(3 * jnp.arange(out.size)).reshape(out.shape).astype(out.dtype))


def on(platform, call):
    def there(*arrays):
        with compiling_for(platform):
            return call(*arrays)

    return there


def assert_close(got, expected):
    """In bfloat16."""
    for x, y in zip(got, expected, strict=True):
        x, y = (z.astype(jnp.float32) for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=0.03 * float(jnp.abs(y).max()))


@pytest.mark.parametrize("name", BY_CUDNN)
def test_cudnn_is_asked_for_what_it_is_to_compute(name, monkeypatch, quick_compile):
    """By default; what padding hides may be huge."""
    call, queries, given, lengths, told = BY_CUDNN[name]
    q, k, v = small(queries)
    behind = jnp.arange(23)[:, None, None]
    if name in ("padding", "padding & causal"):
        k, v = (x.at[0].set(jnp.where(behind < 3, x[0], 3e38)) for x in (k, v))
    if name == "padding & causal":
        q = q.at[1].set(jnp.where(behind < 11, q[1], 3e38))
    assert told_to_cudnn(on(H100, call), (q, k, v), monkeypatch) == [told] * 2
    asked = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", as_cudnn(asked))

    @jax.jit
    def everything(*arrays):
        on(H100, call)(*arrays)
        by_cudnn = output_and_gradients(on(H100, call), arrays)
        return asked[0].pop("lengths"), by_cudnn, output_and_gradients(call, arrays)

    found, by_cudnn, plain = everything(q, k, v)
    assert asked[0] == given
    assert lengths == (found and tuple(tuple(x.tolist()) for x in found))
    assert_close(by_cudnn, plain)


@pytest.mark.parametrize("in_axes", [0, 1, (0, None, None, None), (None, 0, 1, None)])
@pytest.mark.parametrize("padded", [False, True])
def test_cudnn_under_vmap(padded, in_axes, monkeypatch):
    """JAX's own rule wants q, k, v and the lengths batched all together, in front."""

    def call(q, k, v, lengths):
        return attend(masks.Padding(lengths) if padded else masks.Causal())(q, k, v)

    def lower(in_axes):
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * 4
        mapped = [
            jnp.zeros(x.shape if at is None else (*x.shape[:at], 3, *x.shape[at:]), x.dtype)
            for x, at in zip((*small(), jnp.array([3, 5])), axes, strict=True)
        ]
        return told_to_cudnn(jax.vmap(on(H100, call), in_axes), mapped, monkeypatch)

    assert len(lower(in_axes)) == 2
    if padded:
        assert len(lower((None, None, None, 0))) == 2


@pytest.mark.parametrize(
    ("score", "shapes", "options", "reason"),
    [
        (scores.Additive(jnp.ones(64)), {}, {}, "dot score only, not Additive"),
        (scores.Cosine(), {}, {}, "dot score only, not Cosine"),
        (scores.Dot(), {"v": (2, 64, 2, 32)}, {}, "equal widths.*got 64 and 32"),
        (scores.Dot(), {n: (*s[:3], 60) for n, s in SHAPES.items()}, {}, "multiple of 8.*got 60"),
        (scores.Dot(), {n: (*s[:3], 136) for n, s in SHAPES.items()}, {}, "up to 128; got 136"),
        (scores.Dot(), {}, {"bias": jnp.zeros((64, 64))}, "no bias and no dropout"),
        (scores.Dot(), {}, {"dropout_rate": 0.1}, "no bias and no dropout"),
        (scores.Dot(), {}, {"mask": masks.Causal(3)}, "no q_offset"),
        (scores.Dot(), {}, {"mask": masks.Causal(jnp.array([0, 0]))}, "no q_offset"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0, 1)}, "no q_offset"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 2)}, r"window \(left, 0\)"),
        (scores.Dot(), {}, {"mask": masks.Window(5, None)}, r"window \(left, 0\)"),
        (scores.Dot(), {"q": (2, 32, 4, 64)}, {"mask": masks.Window(5, 0)}, "as many queries"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0) & masks.Padding(3)}, "without padding"),
        (scores.Dot(), {}, {"mask": masks.Causal() & masks.Segments(jnp.zeros(64))}, "Segments"),
        (scores.Dot(), {"q": (2, 1, 4, 64)}, {"mask": masks.Causal()}, "two queries or more"),
        (scores.Dot(), {n: (2, 1, *s[2:]) for n, s in SHAPES.items()}, {}, "two queries or more"),
    ],
)
def test_cudnn_refuses(score, shapes, options, reason, monkeypatch):
    """And is not taken by default then."""
    asked = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", as_cudnn(asked))
    q, k, v = arrays(**shapes)
    call = functools.partial(attention, score, q, k, v, **options, dropout_key=jax.random.key(0))
    with compiling_for(H100):
        with pytest.raises(NotImplementedError, match=f'"cudnn".*{reason}.*"blockwise" or None'):
            call(implementation="cudnn")
        jax.eval_shape(lambda: call(implementation=None))
    assert asked == []


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
PADDED = (256, 256)  # 200 queries and keys, in whole lanes
BY_SPLASH = {
    "all pairs": (None, splash_masks.FullMask(PADDED)),
    "causal": (masks.Causal(), splash_masks.CausalMask(PADDED)),
    "causal and segments": (
        masks.Segments(IDS) & masks.Causal(), splash_masks.CausalMask(PADDED),
    ),
    "window": (masks.Window(30, 0), splash_masks.LocalMask(PADDED, (30, 0), 0)),
    "window of the past": (
        masks.Window(30, None), splash_masks.LocalMask(PADDED, (30, None), 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SPLASH)
def test_splash_is_asked_for_what_it_is_to_compute(name, monkeypatch, quick_compile):
    mask, given = BY_SPLASH[name]
    asked = []
    monkeypatch.setattr(splash_attention_kernel, "make_splash_mqa", as_splash(asked))
    found = arrays(q=(2, 200, 4, 8), k=(2, 200, 2, 8), v=(2, 200, 2, 8))
    got = on(V5E, attend(mask, "splash"))(*found)
    assert asked == [given]
    assert_close([got], [attend(mask, "dense")(*found)])


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


def test_splash_refuses_to_prepare_a_mask_for_minutes():
    for length, reason in ((2**16, None), (2**16 + 128, "minutes.*got 65664 × 65664.*pallas")):
        x = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.bfloat16)
        call = Call(scores.Dot(), x, x, x, masks.Causal(), None, 0.0, None, platform=V5E)
        assert re.search(reason or "None", str(splash.refusal(call)))


def test_splash_is_used_by_name_only(monkeypatch):
    """XLA cannot partition it, so that a model under `jit` over a mesh could not be compiled."""
    used = []
    monkeypatch.setattr(splash, "attend", lambda call: used.append(call.mask) or call.q)
    with compiling_for(V5E):
        attention(scores.Dot(), *arrays(**LONG), mask=masks.Causal())
        attention(scores.Dot(), *arrays(**LONG), mask=masks.Causal(), implementation="splash")
    assert used == [masks.Causal()]


BY_TOKAMAX = {
    "all pairs": (None, NO_MASK),
    "causal": (masks.Causal(), CAUSAL),
    "window": (masks.Window(5, 0), {"causal": False, "window": (5, 0)}),
    "window of the past": (masks.Window(5, None), {"causal": False, "window": (5, 23)}),
}


@pytest.mark.parametrize("name", BY_TOKAMAX)
def test_tokamax_is_asked_for_what_it_is_to_compute(name, monkeypatch, quick_compile):
    mask, given = BY_TOKAMAX[name]
    asked = []
    monkeypatch.setitem(sys.modules, "tokamax", as_tokamax(asked))
    got = output_and_gradients(on(H100, attend(mask, "tokamax")), small())
    assert asked == [given]
    assert_close(got, output_and_gradients(attend(mask, "dense"), small()))


def test_tokamax_refuses(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", as_tokamax([]))
    for mask, reason in ((masks.Padding(3), "type Padding"), (masks.Causal(1), "no q_offset")):
        with pytest.raises(NotImplementedError, match=reason):
            on(H100, attend(mask, "tokamax"))(*small())
    with pytest.raises(NotImplementedError, match="not for cpu"):
        attend(None, "tokamax")(*small())


def test_tokamax_that_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with compiling_for(H100), pytest.raises(NotImplementedError, match="pip install tokamax"):
        attention(scores.Dot(), *arrays(), implementation="tokamax")
