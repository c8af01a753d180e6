"""NVIDIA's kernel: what it is asked for, that this is what is to be computed, what it refuses."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from attnlab import masks, scores
from attnlab.devices.platforms import compiling_for
from attnlab.ops.attention import attention
from tests.daily import daily
from tests.ops.kernels.maintained import (
    ALL,
    CAUSAL,
    FEW,
    H100,
    MANY,
    NO_KEYS,
    NO_MASK,
    RECENT,
    SHAPES,
    SOME_KEYS,
    SOME_OF_BOTH,
    arrays,
    as_a_module,
    assert_close,
    attend,
    in_a_window,
    on,
    output_and_gradients,
    small,
)

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


@pytest.mark.parametrize("name", daily(BY_CUDNN, "causal", "window", "padding"))
def test_cudnn_is_asked_for_what_it_is_to_compute(name, monkeypatch):
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


IDS = jnp.zeros(64, int)


@pytest.mark.parametrize(
    ("score", "shapes", "options", "reason"),
    [
        (scores.Additive(jnp.ones(64)), {}, {}, "dot score only, not Additive"),
        (scores.Dot(), {"v": (2, 64, 2, 32)}, {}, "equal widths.*got 64 and 32"),
        (scores.Dot(), {n: (*s[:3], 60) for n, s in SHAPES.items()}, {}, "multiple of 8.*got 60"),
        (scores.Dot(), {n: (*s[:3], 136) for n, s in SHAPES.items()}, {}, "up to 128; got 136"),
        (scores.Dot(), {}, {"bias": jnp.zeros((64, 64))}, "no bias and no dropout"),
        (scores.Dot(), {}, {"dropout_rate": 0.1}, "no bias and no dropout"),
        (scores.Dot(), {}, {"mask": masks.Causal(3)}, "no q_offset"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0, 1)}, "no q_offset"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 2)}, r"window \(left, 0\)"),
        (scores.Dot(), {"q": (2, 32, 4, 64)}, {"mask": masks.Window(5, 0)}, "as many queries"),
        (scores.Dot(), {}, {"mask": masks.Window(5, 0) & masks.Padding(3)}, "without padding"),
        (scores.Dot(), {}, {"mask": masks.Causal() & masks.Segments(IDS)}, "Segments"),
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
