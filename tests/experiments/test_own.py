"""Every program takes an attention of a user's file, and refuses what is none before it begins."""

import importlib

import pytest

from attnlab.bench.case import Result
from attnlab.mechanisms import own
from attnlab.mechanisms.attentions import _kind_of_own
from attnlab.studies.study import Cell
from experiments.compare_lengths import __main__ as compare_lengths
from experiments.compare_lengths import run
from experiments.language_model import __main__ as language_model
from experiments.language_model.models import can_be_ablated
from experiments.translate import report
from tests.experiments import tiny

FILE = """
import flax.linen as nn, flax.struct, jax, jax.numpy as jnp
from attnlab import masks

class Strided(masks.Mask):
    stride: int = flax.struct.field(pytree_node=False, default=2)
    def visible(self, i, j): return (i - j) % self.stride == 0

def mean(q, k, v, *, mask, scale=1.0):
    logits = jnp.zeros((*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3]), v.dtype)
    weights = jax.nn.softmax(logits, where=mask.as_array(q.shape[-3], k.shape[-3]))
    return scale * jnp.einsum("bnts,bsnh->btnh", weights, v)

def blind(q, k, v): return v

class Layer(nn.Module):
    @nn.compact
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None, decode=False):
        return nn.Dense(query.shape[-1], name="mix")(query)
"""
PROGRAMS = [
    "compare_lengths --mechanisms=exact,{}",
    "compare_lengths --mechanisms=reversible-window-4+{} --program=language_model",
    "language_model --models=exact,window-4+{}",
    "long_range --mechanisms={}+exact",
    f"pretrain --attention=exact+{{}} --input={__file__}",
    "translate --models=transformer --set=transformer.attention={},exact",
]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file, beside which programs run; it can be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "_loaded", {})

    def written(text):
        (tmp_path / "mine.py").write_text(text)
        for cached in (own.load, own._module, _kind_of_own):
            cached.cache_clear()

    yield written
    written("")


@pytest.mark.parametrize("command", PROGRAMS)
def test_a_program_takes_it_and_refuses_what_is_none(command, mine):
    mine(FILE)
    program, *flags = command.split()
    main = importlib.import_module(f"experiments.{program}.__main__")
    for name, words in [
        ("mine.py:mean(scale=2.0,)", ""),
        ("mine.py:Strided(stride=3)", ""),
        ("mine.py:Nope", "nothing there is called Nope; there are: Strided, mean, blind, "),
        ("mine.py:blind", "mine.py:blind fails in a layer: ValueError: blind(q, k, v) must take m"),
        ("other.py:X", "other.py: there is no such file"),
    ]:
        status, out, err = tiny.run(main, "--check=flags", *(x.format(name) for x in flags))
        assert (status, out) == (2 * bool(words), "") and words in err, err
        assert err.count("\n") == bool(words)


def test_what_may_not_count_for_nothing(mine):
    mine(FILE)
    # The last projection of a user's module has a name that nothing knows.
    assert can_be_ablated("window-4+mine.py:mean") and not can_be_ablated("exact+mine.py:Layer")
    names = [f"m.py:D({x})" for x in ("a=1", "a=-1")]
    cells = [Cell({"model": "transformer", "changes": f"attention={x}"}, 0) for x in names]
    assert len({report._file(cell) for cell in cells}) == 2
    assert report._file(Cell({"model": "luong", "changes": "score=dot"}, 0)) == (
        "alignment_luong-score-dot"
    )


def test_a_run_with_it_goes_on_unless_the_file_is_another(no_figures, mine, tmp_path):
    mine(FILE)
    (tmp_path / "text").write_text("A cat sat.\n" * 99)
    tiny.finish(
        language_model, "--run_dir=run", "--input=text", "--tasks=text", "--seeds=0",
        "--models=window-4+mine.py:mean(scale=2.0)", "--lengths=16", "--steps=2", "--batch_size=2",
        "--warmup_steps=1", "--validate_every=2", "--num_heads=1",
        "--head_dim=4", "--hidden=4",
    )  # fmt: skip
    report = (tmp_path / "run/report.md").read_text()
    assert "`mine.py:mean(scale=2.0)` sha256 " in report

    assert "0 of 1 trainings to run" in tiny.finish(language_model, "--resume=run")

    mine(FILE.replace("scale *", "scale +"))
    status, _, err = tiny.run(language_model, "--resume=run")
    assert status == 2 and err == (
        "language_model: --resume=run has rows of mine.py:mean(scale=2.0) as its file was before it"
        " was changed; start a new run\n"
    )


def test_a_file_that_is_changed_while_cases_run_ends_the_run(mine, tmp_path, monkeypatch):
    mine(FILE)
    measured = []

    def measure(case, *_):
        measured.append(case)
        (tmp_path / "mine.py").write_text(FILE + "# another")
        return Result(case, "ok", seconds=(1.0,))

    monkeypatch.setattr(run, "measure_case", measure)
    flags = "--mechanisms=mine.py:mean --lengths=8,16 --passes=forward --output_dir=results".split()
    status, out, _ = tiny.run(compare_lengths, *flags)
    assert status == 1 and len(measured) == 1
    assert "mine.py was changed after it was read; start a new run" in out

    (folder,) = (tmp_path / "results").iterdir()
    mine(FILE + "# another")
    status, _, err = tiny.run(compare_lengths, f"--resume={folder}")
    assert status == 2 and "rows of mine.py:mean as its file was before it was changed" in err
