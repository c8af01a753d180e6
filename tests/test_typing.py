"""Type checkers accept what users write: the blocks of the README, and `tests/typing`."""

import json
import shutil
import subprocess
import sys

import pytest

import attnlab
from tests.several import ROOT
from tests.test_readme import BLOCKS


@pytest.fixture
def folder(tmp_path):
    """Of nothing but these files."""
    for path in (ROOT / "tests" / "typing").glob("*.py"):
        shutil.copy(path, tmp_path)
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"readme_{number}.py").write_text(block, encoding="utf-8")
    return tmp_path


def run(*command):
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def errors_of_pyright(folder):
    """In strict mode, less what JAX and Flax leave untyped of theirs."""
    config = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    done = run("pyright", "--outputjson", "-p", str(folder), "--pythonpath", sys.executable)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
        if not one["rule"].startswith("reportUnknown")
        or any(f'"{name}"' in one["message"].splitlines()[0] for name in attnlab.__all__)
    ]


@pytest.mark.slow
def test_pyright_accepts_them(folder):
    pytest.importorskip("pyright", reason="pyright is in the extra `test`")
    if run("pyright", "--version").returncode:
        pytest.skip("pyright needs Node.js, which its extra `nodejs` brings")
    assert not errors_of_pyright(folder)
    wrong = folder / "wrong.py"
    wrong.write_text(
        "import attnlab, jax\n"
        "def f(x: jax.Array) -> None:\n"
        "    attnlab.MultiHeadAttention(2)(x, return_weights=True).shape\n"
        "    attnlab.MultiHeadAttention(2)(x, mask=3)\n"
        "    attnlab.MultiHeadAttention(2, route='lsh')\n"
        "    attnlab.dot_product_attention(x, x, x, is_causal=True)\n"
        "    attnlab.additive_attention(x, x, x, x, dropout=0.1)\n"
        "    attnlab.window_attention(x, x, x, window=(1, 0), maks=None)\n"
        "    attnlab.lsh_attention(x, x, x, scale=1.0)\n"
        "    attnlab.location_attention(x, x, x, implementation=3)\n"
    )
    found = "\n".join(errors_of_pyright(folder))
    assert all(f"wrong.py:{line}: " in found for line in range(3, 11))


@pytest.mark.slow
def test_mypy_accepts_them(folder):
    done = run("mypy", str(folder))
    assert done.returncode == 0, done.stdout
