"""The README's Python runs as it stands, block after block, as one program."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.mark.usefixtures("quick_compile")
def test_the_code_runs(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 4
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 7, 2, 4))  # what its text takes as given
    program = {"q": q, "k": k, "v": v}
    for block in blocks:
        exec(compile(block, str(README), "exec"), program)
    assert capsys.readouterr().out.count("(2, 1000, 64)") == 4
    assert program["y"].shape == (2, 1, 64)
    assert program["found"].tokens.shape == (2, 16)
    # −‖q − k‖² / 2 as the README's last block says it.
    distances = jnp.sum((q[:, :, None] - k[:, None]) ** 2, axis=-1) / 2
    got = program["attnlab"].attention(program["Euclidean"](), q, k, v)
    want = jnp.einsum("bqkn,bknd->bqnd", jax.nn.softmax(-distances, axis=2), v)
    assert jnp.abs(got - want).max() < 1e-5
