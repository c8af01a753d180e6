"""Other people's attention computes what ours of the same kind does, on small inputs."""

import importlib.util
import json

import pytest

from attnlab.bench.case import ACCURACY, BEAM, GREEDY, TRAIN_STEP, Case
from attnlab.mechanisms.attentions import KINDS
from experiments.compare_lengths.runner import difference
from tests.several import run_python

# In a process of its own: peers warn at import, which here is an error, and LSH needs x64.
PROBE = """
import dataclasses, json, sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
from attnlab.bench import inputs, measure
from attnlab.bench.case import Case
values = []
for fields in json.loads(sys.argv[1]):
    ready = measure.prepare(Case(**fields), inputs.read())
    values.append([x.ravel().tolist() for x in ready.values()])
print(json.dumps(values))
"""
MOMENTS = """
import json, torch
from attnlab.bench.peers import _adam
optimizer = _adam(torch.nn.Linear(5, 3))
print(json.dumps([sorted(state) for state in optimizer.state.values()]))
"""
# With the buckets given: theirs, and our preset.
LSH = """
import json
import jax, jax.numpy as jnp, numpy as np, torch
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
from attnlab.bench import peers
from attnlab.bench.case import Case
from attnlab.ops import lsh
rng = np.random.default_rng(0)
qk, v, dcontext = rng.standard_normal((3, 1, 128, 2, 16))
found = {}
for name, options, attend, layout in (
    ("hf_lsh-2", lsh.TRAX, peers.hugging_face, (0, 1, 2, 3)),
    ("reformer_pytorch-2", lsh.LUCIDRAINS, peers.reformer_pytorch, (0, 2, 1, 3)),
):
    case = Case(name, 128, num_heads=2, head_dim=16, chunk_size=16, ops_only=True)
    buckets = rng.integers(0, 8, (1, 2, 128, 2), dtype=np.int32)
    shape = (1, 128, 32) if layout[1] == 1 else (2, 128, 16)
    given = [torch.from_numpy(x.transpose(layout).reshape(shape).copy()) for x in (qk, v)]
    given = [x.requires_grad_() for x in given]
    out = attend(case, buckets)(*given)
    gradients = torch.autograd.grad(out, given, torch.from_numpy(
        dcontext.transpose(layout).reshape(shape).copy()))
    whole = tuple(np.array((1, 128, 2, 16))[list(layout)])
    theirs = [x.detach().numpy().reshape(whole).transpose(layout) for x in (out, *gradients)]
    run = lambda qk, v: lsh.lsh_attention(
        qk, v, jnp.asarray(buckets), chunk_size=16, options=options)
    context, back = jax.vjp(run, qk, v)
    ours = [context, *back(dcontext)]
    found[name] = [float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(ours, theirs)]
print(json.dumps(found))
"""


def output(program, *arguments):
    return json.loads(run_python("-c", program, *arguments).splitlines()[-1])


def skip_without(*packages):
    for package in filter(None, packages):
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            pytest.skip(f"needs {package}, which is in the extra compat")


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "name", [name for name, kind in KINDS.items() if kind.computes and name != "hf_marian"]
)
def test_a_peer_computes_what_ours_does(name, causal):
    kind = KINDS[name]
    skip_without(kind.package)
    sizes = dict(num_heads=1 if "keras" in name else 2, head_dim=16, causal=causal, ops_only=True)
    cases = [
        Case(mechanism, 37, passes, **sizes)
        for passes in ("forward", "forward_backward")
        for mechanism in (name, kind.computes)
    ]
    theirs, ours, their_gradients, our_gradients = output(
        PROBE, json.dumps([case.__dict__ for case in cases])
    )
    assert len(their_gradients) == 3
    for case, x, y in ((cases[0], theirs, ours), (cases[2], their_gradients, our_gradients)):
        assert difference(case, cases[1], x, y) == 0
        assert difference(case, cases[1], x, [[2 * n for n in row] for row in y]) > 0.1


@pytest.mark.slow
def test_a_translating_model_trains_and_searches_as_ours_does():
    """With the parameters of ours: five losses of training, log p of what a search finds."""
    skip_without("transformers")
    sizes = dict(batch=3, num_heads=2, head_dim=8, num_layers=2, vocab_size=261)
    passes = ({"passes": TRAIN_STEP}, {"passes": GREEDY}, {"passes": BEAM, "beam_size": 3})
    cases = [
        Case(name, 11, program="translate", **sizes, **one)
        for one in passes
        for name in ("exact", "hf_marian")
    ]
    values = output(PROBE, json.dumps([case.__dict__ for case in cases]))
    for i in range(0, len(cases), 2):
        ours, theirs = values[i : i + 2]
        assert difference(cases[i], cases[i + 1], ours, theirs) == 0
        assert difference(cases[i], cases[i + 1], ours, [[2 * n for n in theirs[0]]]) > 0.1
    (losses,), _, (greedy,), _, (beam,), _ = values
    assert len(losses) == 5 and losses[-1] < 0.9 * losses[0]
    assert len(greedy) == 3 and min(b - g for b, g in zip(beam, greedy, strict=True)) > -1e-4
    assert max(b - g for b, g in zip(beam, greedy, strict=True)) > 0.01  # it searched


@pytest.mark.slow
def test_the_moments_of_torchs_adam_are_there_before_the_first_call_is_watched():
    skip_without("torch")
    assert output(MOMENTS) == 2 * [["exp_avg", "exp_avg_sq", "step"]]


@pytest.mark.slow
def test_our_presets_compute_what_lsh_peers_do():
    skip_without("transformers", "reformer-pytorch")
    for name, apart in output(LSH).items():
        assert len(apart) == 3 and max(apart) < 1e-9, name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_we_are_as_near_to_float64_as_torch_is(dtype):
    """In bfloat16 heads 24 wide: a query that is scaled there would be rounded once more."""
    skip_without("torch")
    program = PROBE.replace(
        "ready = measure.prepare(Case(**fields), inputs.read())",
        "values.append(measure.measure(Case(**fields), inputs.read(), repeats=1).error); continue",
    )
    width = 64 if dtype == "float32" else 24
    sizes = dict(num_heads=1, head_dim=width, dtype=dtype, ops_only=True, passes=ACCURACY)
    cases = [Case(name, 4096, **sizes) for name in ("exact", "torch_sdpa", "jax_nn", "flax")]
    ours, *theirs = output(program, json.dumps([case.__dict__ for case in cases]))
    assert ours <= 1.05 * min(theirs) and (ours < 1e-6) == (dtype == "float32")
