"""Split over two devices, a program computes what it computes on one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.bench import inputs, mechanisms, programs
from attnlab.bench.case import Case
from tests.daily import daily

CASE = Case("exact", 64, "forward_backward", batch=2, num_heads=4, head_dim=8)
TEXT = inputs.read()


def results(case: Case):
    """Loss and gradients, or the context, on `case.devices` devices."""
    devices = jax.devices()[: case.devices]
    mechanism = mechanisms.build(dataclasses.replace(case, shard=None, devices=1))
    if case.shard is not None:
        mechanism = mechanisms.build(case)
    lowered = programs.lower(case, mechanism, devices)
    streams = inputs.streams(TEXT, batch=case.batch, length=case.length, width=case.width)
    arguments = programs.arguments(case, mechanism, devices, streams, lowered)
    # Biases begin at zero, and one added by each device rather than once would not show.
    arguments = jax.tree.map(lambda x: x + jnp.asarray(0.1, x.dtype), arguments)
    return jax.tree.map(np.asarray, lowered.compile()(*arguments))


@pytest.mark.parametrize(
    ("name", "shard", "fields"),
    daily(
        [
            ("dot", "batch", dict(ops_only=True)),
            ("exact", "heads", {}),
            ("exact", "heads", dict(passes="forward")),
            ("additive", "heads", dict(ops_only=True)),
            ("concat", "heads", {}),
            ("exact", "sequence", {}),
            ("window-16", "sequence", dict(passes="forward")),
            ("window-16", "sequence", dict(ops_only=True)),
            ("location", "sequence", dict(ops_only=True)),
            ("lsh-1", "sequence", dict(chunk_size=16)),
        ],
        ("dot", "batch", dict(ops_only=True)),
        ("exact", "heads", dict(passes="forward")),
        ("window-16", "sequence", dict(passes="forward")),
    ),
)
def test_split_programs_equal_the_whole(name, shard, fields):
    case = dataclasses.replace(CASE, mechanism=name, **fields)
    whole = results(case)
    parts = results(dataclasses.replace(case, shard=shard, devices=2))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4), whole, parts)


@pytest.mark.slow
def test_heads_of_lsh_are_split_with_its_projections():
    case = dataclasses.replace(CASE, mechanism="lsh-1", shard="heads", devices=2, chunk_size=16)
    mechanism = mechanisms.build(case)
    lowered = programs.lower(case, mechanism, jax.devices()[:2])
    parameters = lowered.args_info[0][0]["params"]
    assert parameters["query_key"]["kernel"].shape == (32, 4, 8)
    value, d_parameters, _ = results(case)
    assert np.isfinite(value) and np.abs(d_parameters["params"]["out"]["kernel"]).min() > 0


def test_what_cannot_be_split_says_why():
    case = dataclasses.replace(CASE, mechanism="lsh-3", shard="sequence", devices=2, num_heads=3)
    with pytest.raises(ValueError, match="3 heads × 3 rounds cannot be shared evenly by 2 devices"):
        programs.lower(case, mechanisms.build(case), jax.devices()[:2])
