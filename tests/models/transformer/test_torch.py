"""A stack of layers computes what PyTorch's does from the same parameters."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, routes
from attnlab.models.transformer import TransformerConfig
from attnlab.models.transformer.stack import Stack
from tests.modules.reference import apply, init

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]

D, N, HEADS, HIDDEN = 12, 2, 3, 17
CONFIG = TransformerConfig(
    1, num_layers=N, width=D, hidden=HIDDEN, num_heads=HEADS, param_dtype=jnp.float64
)


@pytest.fixture(scope="module")
def torch():
    """Not imported until a test runs: it takes seconds."""
    return pytest.importorskip("torch", reason="needs torch, of the extra compat")


def load(torch, layer, params):
    """Our parameters of a layer into torch's, whose attention has biases: 0."""

    def matrix(kernel, rows):
        return np.asarray(kernel).reshape(rows, -1).T

    state = {}
    for mine, theirs in (("attention", "self_attn"), ("cross_attention", "multihead_attn")):
        if mine in params:
            kernels = {name: x["kernel"] for name, x in params[mine].items()}
            inward = [matrix(kernels[name], D) for name in ("query", "key", "value")]
            state[f"{theirs}.in_proj_weight"] = np.concatenate(inward)
            state[f"{theirs}.in_proj_bias"] = np.zeros(3 * D)
            state[f"{theirs}.out_proj.weight"] = np.asarray(kernels["out"]).reshape(D, D).T
            state[f"{theirs}.out_proj.bias"] = np.zeros(D)
    for mine, theirs in (("hidden", "linear1"), ("out", "linear2")):
        dense = params["feed_forward"][mine]
        state[f"{theirs}.weight"] = np.asarray(dense["kernel"]).T
        state[f"{theirs}.bias"] = np.asarray(dense["bias"])
    norms = [f"{name}_norm" for name in ("attention", "cross_attention", "feed_forward")]
    for i, name in enumerate((name for name in norms if name in params), start=1):
        state[f"norm{i}.weight"] = np.asarray(params[name]["scale"])
        state[f"norm{i}.bias"] = np.asarray(params[name]["bias"])
    layer = layer.double().eval()
    layer.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
    return layer


@pytest.mark.parametrize("pre_norm", [False, True])
def test_pytorch(pre_norm, torch):
    config = dataclasses.replace(CONFIG, pre_norm=pre_norm)
    dense = routes.AllPairs("dense")
    stack = Stack(config, config.attention(dense), config.cross_attention(route=dense))
    rng = np.random.default_rng(0)
    x, memory = rng.normal(size=(2, 5, D)), rng.normal(size=(2, 7, D))
    lengths = np.array([7, 4])
    variables = init(stack, jnp.asarray(x), jnp.asarray(memory))
    got, _ = apply(
        stack,
        variables,
        jnp.asarray(x),
        jnp.asarray(memory),
        mask=masks.Causal(),
        memory_mask=masks.Padding(jnp.asarray(lengths)),
    )
    y = torch.tensor(x)
    for i in range(N):
        layer = torch.nn.TransformerDecoderLayer(
            D, HEADS, HIDDEN, layer_norm_eps=1e-6, batch_first=True, norm_first=pre_norm
        )
        y = load(torch, layer, variables["params"][f"layer_{i}"])(
            y,
            torch.tensor(memory),
            tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
            memory_key_padding_mask=torch.tensor(np.arange(7) >= lengths[:, None]),
        )
    if pre_norm:
        norm = variables["params"]["norm"]
        weight, bias = (torch.tensor(np.asarray(norm[name])) for name in ("scale", "bias"))
        y = torch.nn.functional.layer_norm(y, (D,), weight, bias, 1e-6)
    np.testing.assert_allclose(got, y.detach().numpy(), rtol=1e-9, atol=1e-11)
