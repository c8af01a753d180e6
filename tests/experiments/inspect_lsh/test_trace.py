"""From a program's text and its trace to the stages' seconds."""

import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.inspect_lsh import trace as profile_trace
from experiments.inspect_lsh.profile import by_stage, instructions, stage_of
from experiments.inspect_lsh.trace import Span

HLO = """\
HloModule jit_f, is_scheduled=true

%fused_computation (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0} parameter(0)
  ROOT %exp.1 = f32[8]{0} exponential(%param_0), metadata={op_name="jit(f)/lsh_attend/exp"}
}

%body.1 (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], /*index=1*/f32[8]{0}) parameter(0)
  %gte = f32[8]{0} get-tuple-element(%arg), index=1
  %dot.7 = f32[8]{0} dot(%gte, %gte), metadata={op_name="jit(f)/lsh_hash/while/body/dot"}
  %copy.1 = f32[8]{0} copy(%dot.7)
  ROOT %tuple.1 = (s32[], f32[8]{0}) tuple(%gte, %copy.1)
}

ENTRY %main.9 (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %copy.2 = f32[8]{0} copy(%x)
  %sort.3 = f32[8]{0} sort(%copy.2), metadata={op_name="jit(f)/jvp(lsh_sort)/sort"}
  %while.4 = (s32[], f32[8]{0}) while(%sort.3), body=%body.1, metadata={op_name="jit(f)/while"}
  %copy.5 = f32[8]{0} copy(%while.4)
  ROOT %exp_fusion = f32[8]{0} fusion(%copy.5), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(f)/lsh_merge/lsh_attend/exp"}
}
"""  # noqa: E501 - as XLA writes it


@pytest.mark.parametrize(
    ("op_name", "stage"),
    [
        ("jit(f)/lsh_merge/while/body/closed_call/lsh_attend/exp", "attend"),
        ("jit(f)/lsh_merge/while/body/lsh_attend/lsh_gather/gather", "gather"),
        ("jit(f)/transpose(jvp(lsh_merge))/add", "merge"),
        ("jit(f)/lsh_sorted_otherwise/my_lsh_hash/add", "other"),
        ("jit(f)/mul", "other"),
    ],
)
def test_the_innermost_scope_is_the_stage(op_name, stage):
    assert stage_of(op_name) == stage


def test_instructions_have_their_stage_and_what_they_run():
    program = instructions(HLO)
    stages = {name: one.stage for name, one in program.items()}
    assert stages["exp_fusion"] == stages["exp.1"] == "attend" and stages["while.4"] == "other"
    assert stages["copy.1"] == stages["dot.7"] == "hash"  # without a name of its own: its operand's
    assert stages["copy.2"] == "sort"  # nor an operand with one: its user's
    assert stages["copy.5"] == "other"  # its operand is named, and outside every scope
    assert program["while.4"].runs == {"arg", "gte", "dot.7", "copy.1", "tuple.1"}
    assert not program["dot.7"].runs and program["copy.1"].op_name == ""


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([("a", 0, 2), ("b", 3, 4)], {"a": 2, "b": 1}),
        ([("a", 0, 4), ("b", 1, 3)], {"a": 3, "b": 1}),  # inside another
        ([("a", 0, 3), ("b", 0, 3), ("a", 0, 3)], {"a": 2, "b": 1}),  # twice at once
        ([("a", 0, 2), ("a", 2, 3), ("b", 2, 2)], {"a": 3}),  # one ends as the next begins
        ([], {}),
    ],
)
def test_each_moment_is_divided_between_those_in_flight(spans, seconds):
    found = profile_trace.divide(Span(name, a * 1e9, b * 1e9) for name, a, b in spans)
    assert found == pytest.approx(seconds)


def fake_trace(monkeypatch, **planes):
    """Makes `read` see these planes: name -> events (name, start, duration, stats), one line."""

    def event(name, start, duration, stats):
        return types.SimpleNamespace(
            name=name, start_ns=start, duration_ns=duration, stats=list(stats.items())
        )

    data = types.SimpleNamespace(
        planes=[
            types.SimpleNamespace(
                name=name, lines=[types.SimpleNamespace(events=[event(*e) for e in events])]
            )
            for name, events in planes.items()
        ]
    )
    fake = types.SimpleNamespace(from_file=lambda path: data)
    monkeypatch.setattr(jax.profiler, "ProfileData", fake)


def test_an_instruction_lasts_until_its_end_mark(monkeypatch):
    events = [
        ("dot.1", 10, 5, {"hlo_op": "dot.1", "_p": 7}),
        ("exp.2", 20, 5, {"hlo_op": "exp.2", "_p": 8}),
        ("ThunkExecutor::Execute", 0, 100, {}),
        ("end: dot.1", 40, 1, {"_c": 7}),
    ]
    fake_trace(monkeypatch, **{"/host:CPU": events})
    found = profile_trace.read(Path("any"))
    assert found == [Span("dot.1", 10, 40), Span("exp.2", 20, 25)]


def test_what_runs_before_the_mark_is_written_is_not_the_instructions(monkeypatch):
    run = "ThunkExecutor::Execute"
    events = [
        (run, 0, 950e3, {}),  # began before: launched the instruction
        ("copy.1", 100e3, 5e3, {"hlo_op": "copy.1", "_p": 7}),
        (run, 50e3, 545e3, {}),  # so did this one
        (run, 300e3, 200e3, {}),  # ended long before the mark: something else
        (run, 600e3, 150e3, {}),  # two that waited for the instruction, one after the other,
        (run, 751e3, 149e3, {}),
        (run, 800e3, 99e3, {}),  # and what the second started in turn
        ("end: copy.1", 902e3, 1e3, {"_c": 7}),
    ]
    fake_trace(monkeypatch, **{"/host:CPU": events})
    assert profile_trace.read(Path("any")) == [Span("copy.1", 100e3, 600e3)]


def test_a_devices_own_events_come_before_the_hosts(monkeypatch):
    launch = [("Thunk", 0, 1, {"hlo_op": "dot.1"})]
    kernel = [("sm90_gemm", 5, 9, {"hlo_op": "dot.1"})]
    fake_trace(monkeypatch, **{"/host:CPU": launch, "/device:GPU:0": kernel})
    assert profile_trace.read(Path("any")) == [Span("dot.1", 5, 14)]
    fake_trace(monkeypatch, **{"/host:CPU": launch, "/device:GPU:0": []})
    assert profile_trace.read(Path("any")) == [Span("dot.1", 0, 1)]


@pytest.mark.slow
def test_a_loop_counts_through_what_it_runs():
    @jax.jit
    def f(x):
        def body(_, x):
            with jax.named_scope("lsh_attend"):
                return jnp.tanh(x @ x)

        with jax.named_scope("lsh_sort"):
            x = jnp.sort(x, axis=0)
        return jax.lax.fori_loop(0, 20, body, x)

    x = jnp.eye(200)
    compiled = f.lower(x).compile()
    program = instructions(compiled.as_text())
    runs = {name: one.runs for name, one in program.items()}
    jax.block_until_ready(compiled(x))
    out, spans = profile_trace.traced(lambda: jax.block_until_ready(compiled(x)), runs)
    assert out.shape == x.shape
    assert any("while" in name for name in program)
    assert not any("while" in span.instruction for span in spans)
    stages = by_stage(profile_trace.divide(spans), program)
    assert stages["attend"] > 0 and stages["sort"] > 0 and stages["gather"] == 0
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    assert sum(stages.values()) <= (last - first) * 1e-9 * (1 + 1e-9)


@pytest.mark.slow
def test_a_trace_without_the_program_is_an_error():
    with pytest.raises(RuntimeError, match="no event of this program"):
        profile_trace.traced(lambda: None, dict.fromkeys(instructions(HLO), ()))
