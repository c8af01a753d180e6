"""Each piece of the README's Python runs by itself as it stands."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)


def run(block: str) -> dict:
    """What the block leaves in a namespace of its own."""
    program: dict = {}
    exec(compile(block, str(README), "exec"), program)
    return program


def every_mechanism(program, printed):
    assert printed.count("(2, 1000, 64)") == 4


def inside_flax(program, printed):
    assert program["y"].shape == (2, 1000, 64) and not printed


def decoding(program, printed):
    assert program["y"].shape == (2, 1, 64)


def translating(program, printed):
    assert program["found"].tokens.shape == (2, 16)


def another_score(program, printed):
    """−‖q − k‖² / 2 as the README has it."""
    q, k, v = (program[name] for name in "qkv")
    distances = jnp.sum((q[:, :, None] - k[:, None]) ** 2, axis=-1) / 2
    visible = jnp.tril(jnp.ones((7, 7), bool))[None, :, :, None]
    weights = jax.nn.softmax(jnp.where(visible, -distances, -jnp.inf), axis=2)
    assert jnp.abs(program["y"] - jnp.einsum("bqkn,bknd->bqnd", weights, v)).max() < 1e-5


CHECKS = (every_mechanism, inside_flax, decoding, translating, another_score)


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_code_runs_by_itself(check, capsys):
    assert len(BLOCKS) == len(CHECKS)
    program = run(BLOCKS[CHECKS.index(check)])
    check(program, capsys.readouterr().out)
