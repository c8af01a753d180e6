"""What the tests of others' kernels share: calls, masks, and the devices they are traced for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks, scores
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops import routes
from attnlab.ops.attention import attention
from attnlab.ops.local import window_attention

H100 = Platform("cuda", "NVIDIA H100 80GB HBM3", (9, 0))
V5E = Platform("tpu", "TPU v5 lite")
SHAPES = {"q": (2, 64, 4, 64), "k": (2, 64, 2, 64), "v": (2, 64, 2, 64)}
LONG = {name: (shape[0], 128, *shape[2:]) for name, shape in SHAPES.items()}
ALL, FEW = (23, 23), (3, 23)
NO_MASK = {"causal": False, "window": None}
CAUSAL = {"causal": True, "window": None}
RECENT = {"causal": True, "window": (5, 0)}
SOME_KEYS = masks.Padding(jnp.array([3, 80]))
SOME_OF_BOTH = masks.Padding(jnp.array([3, 80]), jnp.array([0, 11]))
NO_KEYS = masks.Padding(jnp.array([0, 9])) & masks.Padding(jnp.array([5, 7]))
MANY = masks.Causal() & masks.Window(5, 2) & masks.Window(9, None)


def arrays(dtype=jnp.bfloat16, **shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=x), dtype) for x in (SHAPES | shapes).values()]


def small(queries=23, keys=23):
    return arrays(q=(2, queries, 4, 8), k=(2, keys, 2, 8), v=(2, keys, 2, 8))


def attend(mask=None, implementation=None):
    return functools.partial(attention, scores.Dot(0.2), mask=mask, implementation=implementation)


def in_a_window(mask):
    return functools.partial(window_attention, score=scores.Dot(0.2), window=(5, 2), mask=mask)


def as_a_module(q, k, v):
    layer = MultiHeadAttention(4, num_kv_heads=2, route=routes.Window(5, 2), dtype=q.dtype)
    x = q.reshape(*q.shape[:2], -1)
    return layer.apply(layer.init(jax.random.key(0), x), x, mask=masks.Causal())


def output_and_gradients(call, arrays):
    @jax.jit
    def run(*arrays):
        out, pull_back = jax.vjp(call, *arrays)
        weight = jnp.cos(3 * jnp.arange(out.size)).reshape(out.shape).astype(out.dtype)
        return out, *pull_back(weight)

    return run(*arrays)


def on(platform, call):
    def there(*arrays):
        with compiling_for(platform):
            return call(*arrays)

    return there


def assert_close(got, expected):
    """In bfloat16."""
    for x, y in zip(got, expected, strict=True):
        x, y = (np.asarray(z, np.float32) for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=0.03 * np.abs(y).max())
