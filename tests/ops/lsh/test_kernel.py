"""LSH attention by the range kernels: the same function as round by round."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import Pallas, masks
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops.lsh import kernel
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from tests.daily import daily
from tests.ops.kernels.pallas import plain_kernels
from tests.trees import assert_close

CASES = {  # length, options, causal, mask, rounds
    "strict": (52, STRICT, True, None, 3),
    "both ways, padding": (52, STRICT, False, masks.Padding(jnp.array([43, 52])), 3),
    "one round, segments": (37, STRICT, True, masks.Segments(jnp.arange(37) // 13), 1),
    "multiset, another window": (
        37,
        LSHOptions(union=False, look_back=2, window=9),
        True,
        None,
        2,
    ),
}
KERNEL = Pallas(8, 16, interpret=True)


def arrays(length, rounds, buckets=4):
    rng = np.random.default_rng(0)
    qk, v, g = (jnp.asarray(rng.normal(size=(2, length, 3, 6)), jnp.float32) for _ in range(3))
    return qk, v, g, jnp.asarray(rng.integers(0, buckets, size=(2, rounds, length, 3)))


def output_and_gradients(implementation, length, options, causal, mask, rounds):
    qk, v, g, buckets = arrays(length, rounds)

    def attend(qk, v):
        return lsh_attention(
            qk,
            v,
            buckets,
            chunk_size=8,
            causal=causal,
            mask=mask,
            options=options,
            implementation=implementation,
        )

    @jax.jit
    def run(qk, v):
        out, pull_back = jax.vjp(attend, qk, v)
        return out, *pull_back(g)

    return run(qk, v)


def assert_equal_to_sorted(implementation, case):
    got = output_and_gradients(implementation, *case)
    assert_close(got, output_and_gradients("sorted", *case), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", daily(CASES, "one round, segments"))
def test_equals_the_rounds(name, monkeypatch):
    """With a plain stand-in for the kernel that also checks what a kernel is promised."""
    monkeypatch.setattr(kernel, "kernels_for", lambda platform: plain_kernels)
    assert_equal_to_sorted(KERNEL, CASES[name])


def test_it_is_made_under_x64(x64):
    qk, v, _, buckets = arrays(40, 2)
    attend = functools.partial(lsh_attention, chunk_size=8, implementation=KERNEL)
    assert jax.eval_shape(attend, qk, v, buckets).dtype == jnp.float32


def test_rounds_in_turns(monkeypatch):
    """As few at a time as fit: a round is merged with those of its turn and of turns before."""
    monkeypatch.setattr(kernel, "kernels_for", lambda platform: plain_kernels)
    monkeypatch.setattr(kernel, "_SLOTS_TOGETHER", 2 * 56)
    length, *options, _ = CASES["strict"]
    assert_equal_to_sorted(KERNEL, (length, *options, 4))


def test_it_is_the_default_on_hopper(monkeypatch):
    """On one device, or where `over` divides the rows: XLA cannot."""
    asked = []

    def forward(*args):
        asked.append(args)
        return plain_kernels.forward(*args)

    kernels = types.SimpleNamespace(refusal=plain_kernels.refusal, forward=forward)
    monkeypatch.setattr(kernel, "kernels_for", lambda platform: kernels)
    qk, v, _, buckets = arrays(52, 1)
    for devices, capability in ((1, (8, 0)), (2, (9, 0)), (1, (9, 0))):
        monkeypatch.setattr(jax, "device_count", lambda n=devices: n)
        with compiling_for(Platform("cuda", "", capability)):
            jax.eval_shape(functools.partial(lsh_attention, chunk_size=8), qk, v, buckets)
        assert bool(asked) == ((devices, capability) == (1, (9, 0)))


@pytest.mark.slow
def test_the_kernel_itself():
    """The TPU's, interpreted."""
    assert_equal_to_sorted(Pallas(8, 8, interpret=True), CASES["strict"])


@pytest.mark.parametrize(("rows_at_once", "together"), [(None, 6), (2, 2), (4, 3)])
def test_rows_at_once(rows_at_once, together, monkeypatch):
    """A divisor of the 6 rows that there are."""
    rows = []

    def forward(x, *rest):
        rows.append(len(x.q))
        return plain_kernels.forward(x, *rest)

    kernels = types.SimpleNamespace(refusal=plain_kernels.refusal, forward=forward)
    monkeypatch.setattr(kernel, "kernels_for", lambda platform: kernels)
    qk, v, _, buckets = arrays(16, 1)
    options = dict(chunk_size=8, rows_at_once=rows_at_once, implementation=KERNEL)
    jax.eval_shape(functools.partial(lsh_attention, **options), qk, v, buckets)
    assert set(rows) == {together}
