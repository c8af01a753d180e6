"""Programs compiled by the real compilers for accelerators that are not there."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import pytest

import attnlab
from attnlab import masks
from attnlab.bench import deviceless, model_programs, targets, topology
from attnlab.bench.case import Case, Result
from attnlab.devices import platforms
from attnlab.models import Reformer
from attnlab.ops import routes
from attnlab.runs.flags import build
from experiments.compare_lengths.settings import Settings
from tests.bench.rows import GIB
from tests.daily import daily
from tests.several import run_python

PROGRAM = """
import dataclasses, json, sys
from attnlab.bench.case import Case
from attnlab.bench import inputs, measure
from experiments.compare_lengths import worker
for fields in json.loads(sys.argv[1]):
    row = worker.guard(measure.measure, Case(**fields), inputs.read())
    print(json.dumps(dataclasses.asdict(row)), flush=True)
"""
EXCHANGED = """
import json, re, sys
from attnlab.devices import platforms
from attnlab.bench import targets, topology, model_programs
from attnlab.bench.case import Case
case = Case(**json.loads(sys.argv[1]))
target = targets.parse(case.target)
with platforms.compiling_for(target.platform):
    lowered = model_programs.lower(case, topology.devices(target))
print(json.dumps(re.findall(r"= \\w+\\[[\\d,]+\\]\\S* ([\\w-]+)\\(", lowered.compile().as_text())))
"""
TINY = Case("dot", 128, num_heads=2, head_dim=32, ops_only=True, dtype="bfloat16")
STEP = dict(passes="train_step", program="language_model", num_layers=1, vocab_size=64)
LONG = dict(length=2048, num_heads=4, batch=4, ops_only=False, mechanism="exact")


def compiled(*cases: Case) -> list[Result]:
    """In a process of its own: an environment with libtpu must not change other tests."""
    given = json.dumps([dataclasses.asdict(c) for c in cases])
    printed = run_python("-c", PROGRAM, given, env=os.environ | topology.environment())
    return [build(Result, json.loads(line)) for line in printed.splitlines()]


def needs(*modules: str):
    reason = f"needs one of {', '.join(modules)}, which the extras tpu and gpu-compile install"
    return pytest.mark.skipif(not any(map(topology._is_installed, modules)), reason=reason)


@needs("libtpu")
def test_v5e():
    one = dataclasses.replace(TINY, target="v5e", implementation="blockwise")
    huge = dataclasses.replace(one, length=2**16, implementation="dense", dtype="float32")
    whole = dataclasses.replace(one, **LONG)
    split = dict(target="v5e:2x2", devices=4)
    parts = [
        dataclasses.replace(whole, **split, shard=shard) for shard in ("batch", "heads", "sequence")
    ]
    lsh = dict(mechanism="lsh-3", implementation=None)
    refused = dataclasses.replace(one, **lsh, shard="sequence", **split)
    step = dataclasses.replace(one, mechanism="exact", ops_only=False, **STEP)
    small, large, all_of_it, *shares, lost, trained = compiled(
        one, huge, whole, *parts, refused, step
    )

    assert small.status == "ok" and not small.seconds and small.compile_seconds > 0
    assert small.analysis_bytes >= 4 * 128 * 64 * 2  # three inputs and an output
    assert large.status == "too_large" and large.message.endswith("GiB of 15.8 GiB")
    assert large.refused_bytes == large.memory_bytes > 2 * 2**32 * 4 > large.available_bytes
    assert 15 * GIB < large.available_bytes < 16 * GIB
    stream = 4 * 2048 * 128 * 2  # queries, keys, values or contexts of all, bfloat16
    sums, exchanged = 2 * 3 / 4 * stream, 4 * 3 / 4 * stream / 4
    assert all_of_it.sent is None
    assert [share.sent.total for share in shares] == pytest.approx([0, sums, exchanged], rel=0.01)
    for share in shares:
        assert share.status == "ok", share
        assert 0.2 * all_of_it.memory_bytes < share.memory_bytes < 0.8 * all_of_it.memory_bytes
    assert lost.status == "failed" and "2 heads × 3 rounds cannot be shared" in lost.message
    assert trained.status == "ok" and trained.argument_bytes > 3 * 4 * 64 * 64  # with Adam's state


@needs("libtpu")
@pytest.mark.slow
def test_nothing_is_gathered_where_a_training_of_lsh_divides_its_batch():
    case = dataclasses.replace(
        TINY, **STEP | dict(mechanism="lsh-4", ops_only=False, target="v5e:2x2", batch=4, devices=4)
    )
    given = json.dumps(dataclasses.asdict(dataclasses.replace(case, shard="batch")))
    printed = run_python("-c", EXCHANGED, given, env=os.environ | topology.environment())
    operations = set(json.loads(printed.splitlines()[-1]))
    assert "all-reduce" in operations and "sort" in operations
    assert not {"all-gather", "all-gather-start", "all-to-all"} & operations


@needs("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
def test_h100():
    one = dataclasses.replace(TINY, target="h100", implementation="blockwise")
    huge = dataclasses.replace(one, length=2**18, implementation="dense")
    of_hosts = dict(target="h100:16", devices=16, shard="state", batch=16, ops_only=False)
    step = dataclasses.replace(one, mechanism="exact", **STEP | of_hosts)
    small, large, trained = compiled(one, huge, step)
    assert small.status == "ok" and small.analysis_bytes >= 4 * 128 * 64 * 2
    assert large.status == "too_large" and large.message.endswith(" of 59.3 GiB")
    assert large.analysis_bytes > 2 * 2**36 * 2 and large.refused_bytes is None
    assert trained.status == "ok" and not trained.message
    assert 0 < trained.sent.between_hosts < trained.sent.total / 4  # of eight in each of two hosts


def test_the_tpu_compilers_refusal_is_read():
    old = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (128.50G) exceeds available HBM (15.75G)."
    )
    new = old.replace("Ran out", "E1000: CompileTimeHbmOom: Ran out") + " HLO module: jit_f (3)."
    for text in (old, new):
        assert deviceless.refused_sizes(text) == (round(128.5 * GIB), round(15.75 * GIB))
    assert deviceless.refused_sizes(old.replace("RESOURCE_EXHAUSTED", "INTERNAL")) is None
    assert deviceless.refused_sizes("RESOURCE_EXHAUSTED: out of memory") is None


def test_what_cudnn_would_compute_is_compiled_blockwise_where_it_is_missing():
    target, q = targets.parse("h100"), jax.ShapeDtypeStruct((1, 2048, 2, 64), jnp.bfloat16)

    def attend(implementation=None):
        if platforms.current().has_cudnn:
            raise RuntimeError("cuDNN not found.")  # as JAX does while it traces
        how = dict(mask=masks.Causal(), implementation=implementation)
        return jax.make_jaxpr(lambda q: attnlab.dot_product_attention(q, q, q, **how))(q)

    chosen, note = deviceless.on_target(target, attend)
    assert str(chosen) == str(deviceless.on_target(target, lambda: attend("blockwise"))[0])
    assert note.startswith("compiled without cuDNN")
    assert deviceless.on_target(target, lambda: platforms.current()) == (target.platform, "")
    program = deviceless.compile_for(
        lambda: attend() and jax.jit(jnp.sin).lower(1.0), target, jax.devices()[:1]
    )
    assert program.note == note and program.need.total == 8

    def fails():
        raise RuntimeError("cuDNN not found.")

    with pytest.raises(RuntimeError):  # what was asked for is never replaced
        deviceless.on_target(target, fails)


@pytest.mark.parametrize(("shard", "mesh"), [("state", "data:2"), ("sequence", "sequence:2")])
def test_a_training_is_split_by_a_mesh_as_by_a_name(shard, mesh):
    case = dataclasses.replace(TINY, mechanism="exact", length=64, batch=2, devices=2, **STEP)
    by_name, by_mesh = (
        model_programs.lower(dataclasses.replace(case, shard=one), jax.devices()[:2]).as_text()
        for one in (shard, mesh)
    )
    assert by_mesh == by_name and 'mesh = <["data"=' in by_name


@pytest.mark.parametrize(
    ("program", "mechanism"),
    daily(
        [
            ("translate", "exact"),
            ("bert", "exact"),
            ("bert", "lsh-4"),
            ("language_model", "window-16"),
            ("language_model", "additive"),
        ]
    ),
)
def test_training_steps_lower(program, mechanism):
    case = dataclasses.replace(
        TINY, mechanism=mechanism, length=64, batch=2, devices=2, **STEP | dict(program=program)
    )
    lowered = model_programs.lower(case, jax.devices()[:2])
    (state, batch), _ = lowered.args_info
    of_bert = {(2,), (2, 10)} if program == "bert" else set()  # pairs, and 15 % of the tokens
    assert {x.shape for x in jax.tree.leaves(batch)} == {(2, 64)} | of_bert
    count = sum(x.shape == (64, 64) for x in jax.tree.leaves(state))
    assert count >= 3  # the vocabulary [V, D] and Adam's two moments of it
    assert "jax.buffer_donor" in lowered.as_text() or "tf.aliasing_output" in lowered.as_text()


OF_MODELS = ("train_step",)


@pytest.mark.parametrize(
    "name", ["exact", "reversible-exact", "chunked-reversible-exact", "reformer"]
)
def test_reversible_models_are_those_of_their_names(name):
    case = Case(name, 2048, num_heads=2, head_dim=4, dtype="float32", **STEP)
    model = model_programs.build(case)
    assert isinstance(model, Reformer) == (name != "exact")
    in_chunks = name in ("chunked-reversible-exact", "reformer")
    assert model.config.feed_forward_chunk == (1024 if in_chunks else None)
    hashed = isinstance(model.attention[-1].route, routes.LSH)
    assert hashed == (name == "reformer")


def test_cases_go_over_depth():
    asked = dict(target=("v5e",), program="language_model", passes=OF_MODELS, num_layers=(2, 6))
    settings = Settings(**asked, mechanisms=("reversible-exact:dense", "reformer"), lengths=(64,))
    cases = settings.cases(local_devices=1)
    assert [(c.label, c.num_layers) for c in cases] == [
        ("reversible-exact:dense", 2),
        ("reformer", 2),
        ("reversible-exact:dense", 6),
        ("reformer", 6),
    ]


def test_cases_go_over_the_batch():
    asked = dict(
        target=("h100-64",), shard="state", program="bert", passes=OF_MODELS, mechanisms=("lsh-4",)
    )
    cases = Settings(**asked, batch=(128, 64), lengths=(512,)).cases(local_devices=1)
    assert [(c.batch, c.devices, c.length) for c in cases] == [(64, 64, 512), (128, 64, 512)]
    assert Settings.implied({"batch": (1, 2)}) == {"lengths": (4096,)}


def test_cases_of_targets():
    settings = Settings(
        target=("v5e-8", "v5e:2x4", "h100-8"), shard="batch", batch=(8,), program="translate",
        passes=OF_MODELS, mechanisms=("lsh-4",), lengths=(64,),
    )  # fmt: skip
    cases = settings.cases(local_devices=1)
    assert [(c.target, c.devices, c.passes) for c in cases] == [
        ("v5e:2x4", 8, "train_step"),
        ("h100:8", 8, "train_step"),
    ]
    assert cases[0].num_layers == 6 and Settings().cases(1)[0].num_layers is None
