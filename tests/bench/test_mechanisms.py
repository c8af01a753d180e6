import dataclasses

import jax
import numpy as np
import pytest
from jax.extend.core import Var

from attnlab.bench import inputs, measure, mechanisms, programs
from attnlab.bench.case import Case
from attnlab.mechanisms.attentions import KINDS
from tests.daily import daily
from tests.trees import assert_close

OURS = {name: kind for name, kind in KINDS.items() if not kind.written_in}
NAMES = [f"{name}-3" if kind.counts else name for name, kind in OURS.items()]
SIZES = dict(num_heads=2, head_dim=8, chunk_size=4, batch=2)
TEXT = inputs.Text("test", np.frombuffer(b"a text with some repetition, some repetition", np.uint8))


def run(case: Case):
    mechanism, devices = mechanisms.build(case), jax.local_devices()[: case.devices]
    lowered = programs.lower(case, mechanism, devices)
    streams = inputs.streams(TEXT, batch=case.batch, length=case.length, width=case.width)
    arguments = programs.arguments(case, mechanism, devices, streams, lowered)
    return jax.tree.map(np.asarray, lowered.compile()(*arguments))


def lowered(case: Case):
    return programs.lower(case, mechanisms.build(case), jax.local_devices()[: case.devices])


@pytest.mark.parametrize("name", daily(NAMES, "dot", "window-3"))
def test_every_module_runs_forward_and_backward(name):
    case = Case(name, 13, "forward_backward", **SIZES)
    loss, d_parameters, d_inputs = run(case)
    assert loss.shape == () and np.isfinite(loss)
    assert len(d_inputs) == len(mechanisms.build(case).streams)
    for gradient in jax.tree.leaves((d_parameters, d_inputs)):
        assert np.isfinite(gradient).all()
    assert any(np.any(g) for g in d_inputs)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_takes_split_heads_and_the_same_flags(name):
    case = Case(name, 13, ops_only=True, **SIZES)
    assert lowered(case).out_info.shape == (2, 13, 2, 8)
    mechanism = mechanisms.build(case)
    streams = [np.ones((2, 13, 2, 8), "f")] * len(mechanism.streams)
    parameters = jax.eval_shape(mechanism.init, jax.random.key(0))
    program = jax.make_jaxpr(mechanism.apply)(parameters, *streams).jaxpr
    read = {x for equation in program.eqns for x in equation.invars if isinstance(x, Var)}
    assert read >= {*program.invars[-len(streams) :]}
    assert (
        lowered(Case(name, 13, "forward_backward", ops_only=True, **SIZES)).out_info[0].shape == ()
    )


@pytest.mark.parametrize("ops_only", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_causal_is_passed_on(name, ops_only):
    def text_of(causal: bool) -> str:
        return lowered(Case(name, 13, causal=causal, ops_only=ops_only, **SIZES)).as_text()

    assert text_of(True) != text_of(False)


def test_a_route_that_hides_the_future_gets_no_second_mask(monkeypatch):
    monkeypatch.setattr(mechanisms, "masks", None)  # of which it would be made
    lowered(Case("window-3", 13, causal=True, **SIZES))
    with pytest.raises(AttributeError):
        lowered(Case("dot", 13, causal=True, **SIZES))


@pytest.mark.parametrize("name", ["dot", "window-3"])
def test_a_causal_module_does_not_see_what_follows(name):
    case = Case(name, 13, **SIZES | {"batch": 1})
    mechanism, devices = mechanisms.build(case), jax.local_devices()[:1]
    program = lowered(case)
    compiled = program.compile()

    def contexts(text: bytes):
        data = inputs.Text("test", np.frombuffer(text, np.uint8))
        streams = inputs.streams(data, batch=1, length=13, width=case.width)
        return np.asarray(compiled(*programs.arguments(case, mechanism, devices, streams, program)))

    one, other = contexts(b"abcdefghijklm"), contexts(b"abcdefMLKJIHG")
    np.testing.assert_allclose(one[:, :6], other[:, :6], rtol=1e-5, atol=1e-5)
    assert np.abs(one[:, 6:] - other[:, 6:]).max() > 1e-3


@pytest.mark.parametrize(
    "name", daily(["exact", "window-3", "additive", "lsh-2"], "exact", "lsh-2")
)
def test_a_decoded_token_is_that_of_the_causal_forward(name):
    case = Case(name, 14, "decode", **SIZES)
    context, variables = run(case)  # token 7, after those before it
    mechanism = mechanisms.build(dataclasses.replace(case, passes="forward"))
    x = inputs.streams(TEXT, batch=2, length=14, width=case.width)["query"]
    parameters = {"params": variables["params"]}
    whole = jax.jit(mechanism.apply)(parameters, *[x] * len(mechanism.streams))
    np.testing.assert_allclose(context[:, 0], whole[:, 7], rtol=1e-4, atol=1e-5)
    sizes = {leaf.shape[1] for leaf in jax.tree.leaves(variables["cache"]) if leaf.ndim == 4}
    assert sizes == {14} or name == "lsh-2"


def test_tokens_are_timed_within_the_cache(monkeypatch):
    seen = []

    def timed(run, arguments, calls, **how):
        seen.append([np.asarray(run()) for _ in range(calls)])
        return 2.0

    monkeypatch.setattr(measure, "sample", timed)
    ready = measure.prepare(Case("exact", 14, "decode", **SIZES), TEXT)
    ready.one_call = measure.SAMPLE_SECONDS / 17
    assert ready.sample() == 2.0 and [len(x) for x in seen] == [7, 7, 3]
    np.testing.assert_array_equal(seen[0], seen[1])  # from the same tokens on
    assert np.isfinite(seen[0]).all()  # which they are not beyond the cache


@pytest.mark.parametrize("parallel", daily(["jit", "pmap"], "pmap"))
def test_two_devices_compute_what_one_does(parallel):
    one = run(Case("exact", 13, "forward_backward", **SIZES))
    two = run(Case("exact", 13, "forward_backward", devices=2, parallel=parallel, **SIZES))
    loss, d_parameters, d_inputs = two
    if parallel == "pmap":  # one copy a device, summed over them
        loss, d_parameters = jax.tree.map(lambda x: x[1], (loss, d_parameters))
        d_inputs = tuple(x.reshape(-1, *x.shape[2:]) for x in d_inputs)
    assert_close((loss, d_parameters, d_inputs), one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_module_has_the_same_projections(name, num_heads):
    case = Case(name, 5, **SIZES | {"num_heads": num_heads})
    parameters = jax.eval_shape(mechanisms.build(case).init, jax.random.key(0))["params"]
    found = {layer: parameters[layer]["kernel"].shape for layer in parameters if layer != "score"}
    biased = {layer for layer in found if "bias" in parameters[layer]}
    into, out = (case.width, num_heads, 8), (num_heads, 8, case.width)
    queries = ("query_key",) if name in ("lsh-3", "shared") else ("query", "key")
    assert found == dict.fromkeys((*queries, "value"), into) | {"out": out}
    assert biased == set(found)


def test_lengths_of_one_mechanism_share_parameters():
    built = {mechanisms.build(Case("dot", n, p)) for n in (8, 16) for p in ("a", "b")}
    assert len(built) == 1
    assert mechanisms.build(Case("location", 8)) is not mechanisms.build(Case("location", 16))
