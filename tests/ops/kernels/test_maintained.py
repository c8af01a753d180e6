"""The kernels that others maintain: used where they serve, refused elsewhere, and equal to ours."""

import re
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks

from attnlab import masks, scores
from attnlab.devices.platforms import compiling_for
from attnlab.devices.split import over
from attnlab.ops.attention import attention
from attnlab.ops.kernels import cudnn, splash
from attnlab.ops.kernels.call import Call
from attnlab.ops.kernels.pallas import Pallas, exact
from tests.ops.kernels.maintained import (
    CAUSAL,
    H100,
    LONG,
    NO_MASK,
    SHAPES,
    V5E,
    arrays,
    assert_close,
    attend,
    on,
    output_and_gradients,
    small,
)


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
def test_splash_is_asked_for_what_it_is_to_compute(name, monkeypatch):
    mask, given = BY_SPLASH[name]
    asked = []
    monkeypatch.setattr(splash_attention_kernel, "make_splash_mqa", as_splash(asked))
    found = arrays(q=(2, 200, 4, 8), k=(2, 200, 2, 8), v=(2, 200, 2, 8))
    got = jax.jit(on(V5E, attend(mask, "splash")))(*found)
    assert asked == [given]
    assert_close([got], [jax.jit(attend(mask, "dense"))(*found)])


SERVED = {
    "all pairs, more keys": (None, 200, 300),
    "causal and segments": (masks.Causal() & masks.Segments(IDS), 200, 200),
    "a window": (masks.Window(30, 5), 200, 200),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_splash_is_the_same_function(name):
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


def test_splash_is_the_default_where_it_has_a_device_of_its_own(monkeypatch):
    """XLA cannot partition it, and `jax.shard_map` with its defaults does not take it."""
    used = []
    monkeypatch.setattr(splash, "attend", lambda call: used.append(call.lengths) or call.q)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def attend(length=128, **options):
        x = jnp.zeros((2, length, 1, 64), jnp.bfloat16)
        jax.eval_shape(
            lambda x: attention(scores.Dot(), x, x, x, mask=masks.Causal(), **options), x
        )
        return x

    with compiling_for(V5E):
        attend()  # on one of two devices, or on both: nobody knows
        jax.shard_map(lambda: attend(), mesh=mesh, in_specs=(), out_specs=jax.P())()
        assert used == []
        attend(implementation="splash")
        with over(mesh, batch="x"):
            attend(256)
            attend(2**15 + 128)  # its mask would take longer to prepare
        monkeypatch.setattr(jax, "device_count", lambda: 1)
        attend(384)
    attend(512)
    assert used == [(n, n) for n in (128, 256, 384)]


@pytest.mark.parametrize(
    ("score", "dtype", "mask", "length", "chosen"),
    [
        (scores.Dot(), jnp.bfloat16, masks.Causal(), 64, ["cudnn"]),
        (scores.Dot(), jnp.bfloat16, masks.Window(3, 2), 64, ["pallas"]),
        (scores.Dot(), jnp.bfloat16, masks.Window(3, 2), 32, []),
        (scores.Dot(), jnp.float32, masks.Causal(), 64, []),
        (scores.Additive(jnp.ones(64)), jnp.bfloat16, masks.Causal(), 64, ["pallas"]),
    ],
)
def test_the_fastest_kernel_that_serves_is_the_default_on_hopper(
    score, dtype, mask, length, chosen, monkeypatch
):
    used = []
    for name, kernel in (("cudnn", cudnn), ("pallas", exact)):
        monkeypatch.setattr(kernel, "attend", lambda call, name=name: used.append(name) or call.q)
    x = jnp.zeros((2, length, 1, 64), dtype)
    for devices in (2, 1):  # XLA cannot partition ours
        monkeypatch.setattr(jax, "device_count", lambda n=devices: n)
        with compiling_for(H100):
            jax.eval_shape(lambda: attention(score, x, x, x, mask=mask))
    assert used == (chosen * 2 if chosen == ["cudnn"] else chosen)


BY_TOKAMAX = {
    "all pairs": (None, NO_MASK),
    "causal": (masks.Causal(), CAUSAL),
    "window": (masks.Window(5, 0), {"causal": False, "window": (5, 0)}),
    "window of the past": (masks.Window(5, None), {"causal": False, "window": (5, 23)}),
}


@pytest.mark.parametrize("name", BY_TOKAMAX)
def test_tokamax_is_asked_for_what_it_is_to_compute(name, monkeypatch):
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
