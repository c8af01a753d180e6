"""What the tests of the modules share: parameters that are all at work, and multi-head attention.

`multi_head` is written from Vaswani et al. 2017, §3.2.2, in float64 NumPy around the oracle.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests import oracle


def init(module, *inputs, seed=0, **options):
    """The module's variables without compiling anything: parameters drawn at random, the rest 0.

    So none is 0 or 1 by default, and every one of them is at work.
    """
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    shapes = jax.eval_shape(lambda: module.init(keys, *inputs, **options))
    rng = np.random.default_rng(seed)

    def draw(x):
        return jnp.asarray(rng.normal(size=x.shape) / max(x.shape[-1], 4) ** 0.5, x.dtype)

    return {
        name: jax.tree.map(
            draw if name == "params" else lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), tree
        )
        for name, tree in shapes.items()
    }


def apply(module, variables, *inputs, **options):
    """`module.apply`, compiled as one program."""
    return jax.jit(lambda v, inputs: module.apply(v, *inputs, **options))(variables, inputs)


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def rotary(x, positions):
    """Su et al. 2021, eq. 34 as complex numbers: pair (i, i + H/2) turns by p / 10000^{2i/H}."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions)[:, None] / 10_000.0 ** (np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], -1)


def project(params, name, x):
    """[B, T, D] to [B, T, N, H]."""
    kernel = params[name]["kernel"]
    return np.einsum("btd,dnh->btnh", x, kernel) + params[name].get("bias", 0)


def rms_norm(params, name, x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * params[name]["scale"]


def merge(params, context):
    """[B, T, N, D] to [B, T, out]."""
    kernel = params["out"]["kernel"]
    return np.einsum("btnd,ndo->bto", context, kernel) + params["out"].get("bias", 0)


def multi_head(
    params,
    query,
    key,
    value,
    *,
    score=oracle.scaled_dot,
    score_parameters=(),
    mask=None,
    bias=None,
    normalize_qk=False,
    turn=False,
):
    """The result [B, T, out] and the weights [B, N, T, S]."""
    params, query, key, value = float64((params, query, key, value))
    q, k, v = (
        project(params, name, x) for name, x in (("query", query), ("key", key), ("value", value))
    )
    if normalize_qk:
        q, k = rms_norm(params, "query_norm", q), rms_norm(params, "key_norm", k)
    if turn:
        q, k = (rotary(x, np.arange(x.shape[1])) for x in (q, k))
    parameters = [params["score"][name] for name in score_parameters]
    found = oracle.attention(score, q, k, v, parameters, mask=mask, bias=bias)
    return merge(params, found.context), found.weights
