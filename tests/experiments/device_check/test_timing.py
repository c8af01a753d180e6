"""`device_check` times fairly, sets what it finds beside its targets, and reports it."""

import dataclasses
import threading
import time

import jax
import numpy as np
import pytest

from attnlab.bench import inputs
from attnlab.bench.case import Case, Result
from attnlab.runs import figure_files
from attnlab.runs.report import SoFar
from attnlab.runs.rows import Where
from experiments.device_check import compiler, report, targets, turns
from experiments.device_check.cases import Check, Checked
from experiments.device_check.functions import build, flash, tanh_case, tanh_evaluations
from experiments.device_check.settings import Settings


def test_flash_is_attention():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 16, 2, 8))
    ours = build(Case("exact", 16, num_heads=2, head_dim=8, ops_only=True), "cpu")
    np.testing.assert_allclose(
        flash("cpu", causal=True)(q, k, v), ours.apply({}, q, k, v), rtol=1e-5, atol=1e-6
    )


def test_programs_are_timed_in_turns():
    """What is refused or fails is a row; every other one has as many samples."""
    common = dict(num_heads=2, head_dim=8, dtype="bfloat16", ops_only=True)
    cases = [
        Case("lsh-4", 64, chunk_size=16, **common),
        Case("flash", 64, **common),
        Case("additive", 64, implementation="cudnn", **common),
        Case("exact", 64, implementation="no such", **common),
        tanh_case(2**15, "float32"),
    ]
    found, stages = {}, []
    for group in (cases[:-1], cases[-1:]):
        turns.run(
            group,
            inputs.read(),
            repeats=3,
            case_seconds=20.0,
            threads=2,
            tell=lambda i, stage: stages.append((i, stage)),
            give=lambda i, row: found.__setitem__(row.case, row),
        )
    lsh, flash, refused, wrong, tanh = (found[case] for case in cases)
    assert [len(r.seconds) for r in (lsh, flash, tanh)] == [3, 3, 3]
    assert {r.status for r in (lsh, flash, tanh)} == {"ok"} and lsh.memory_bytes > 64 * 16 * 2 * 3
    assert refused.message.startswith(turns.REFUSED) and "cudnn" in refused.message
    assert wrong.status == "failed" and "no such" in wrong.message
    running = [i for i, stage in stages if stage == "running"]
    assert running[:8] == [0, 1, 0, 1, 1, 0, 0, 1]  # warm-ups, then every other turn backwards


@pytest.mark.slow
def test_what_does_not_compile_in_time_is_left_for_a_resumed_run(monkeypatch):
    at_leisure, released = compiler._compile, threading.Event()

    def hold_lsh(lowered):
        if "sort" in lowered.as_text():
            released.wait(60)
        return at_leisure(lowered)

    monkeypatch.setattr(compiler, "_compile", hold_lsh)
    common = dict(num_heads=2, head_dim=8, dtype="bfloat16", ops_only=True)
    rows, began = [], time.monotonic()
    turns.run(
        [Case("lsh-4", 512, chunk_size=16, **common), Case("flash", 512, **common)],
        inputs.read(),
        repeats=1,
        case_seconds=20.0,
        threads=2,
        seconds=9.0,
        tell=lambda i, stage: None,
        give=lambda i, row: rows.append(row),
    )
    assert [row.case.mechanism for row in rows] == ["flash"] and time.monotonic() - began < 30
    released.set()


def row(mechanism, n, milliseconds, *, memory=1e9, turns="a", implementation=None, **other):
    case = Case(
        mechanism,
        n,
        "forward_backward",
        batch=max(1, 65536 // n),
        dtype="bfloat16",
        ops_only=True,
        implementation=implementation,
        **other,
    )
    times = milliseconds if isinstance(milliseconds, tuple) else (milliseconds,) * 3
    return Result(
        case,
        "ok",
        seconds=tuple(t / 1e3 for t in times),
        argument_bytes=int(memory),
        output_bytes=0,
        temporary_bytes=0,
        turns=turns,
    )


def results(**change) -> list[Result]:
    """An H200 on which every target is met."""
    numbers = dict(lsh=10.0, pallas=8.0, default=1.0, lsh_memory=1.2e9, longest=40.0) | change
    found = []
    for n in (1024, 4096, 8192, 65536):
        flash_time = n / 8192 * 15
        found += [
            row("flash", n, flash_time),
            row("lsh-4", n, numbers["lsh"], memory=numbers["lsh_memory"]),
            row(
                "lsh-4", n, numbers["pallas"], memory=numbers["lsh_memory"], implementation="pallas"
            ),
            row("exact", n, flash_time * numbers["default"]),
        ]
    found += [
        row("lsh-4", 2**20, numbers["longest"], implementation=way) for way in (None, "pallas")
    ]
    rate = tanh_case(2**30, "bfloat16")
    found.append(Result(rate, "ok", seconds=(tanh_evaluations(rate) / 1e12,)))
    for n in (1024, 8192):
        bound = tanh_evaluations(row("additive", n, 1).case) / 1e12
        found.append(row("additive", n, 1.9e3 * bound, memory=1e9))
    return found


def verdicts(found, device="NVIDIA H200", tokens=65536) -> list[str]:
    return [v.word({"device": device}, tokens) for v in targets.verdicts(found)]


def test_targets():
    assert verdicts(results()) == ["met"] * 11
    assert verdicts(results(), device="NVIDIA A100") == ["not measured here"] * 11
    assert verdicts(results(), tokens=1024) == ["not measured here"] * 11
    assert verdicts([]) == ["not measured here"] * 11
    slow = verdicts(results(lsh=16.0, lsh_memory=1.6e9, default=1.05))
    assert slow == ["NOT met"] * 3 + ["met"] * 3 + ["NOT met"] + ["met"] * 3 + ["NOT met"]
    slow = verdicts(results(pallas=16.0, lsh_memory=1.6e9))
    assert slow == ["met"] * 2 + ["NOT met", "met"] + ["NOT met"] * 3 + ["met"] * 4
    failed = [
        dataclasses.replace(r, status="too_large") if r.case.length == 2**20 else r
        for r in results()
    ]
    assert verdicts(failed)[3] == verdicts(failed)[7] == "NOT met"
    quadratic = [
        dataclasses.replace(r, argument_bytes=8 * 10**9, seconds=(9.0,))
        if (r.case.mechanism, r.case.length) == ("additive", 8192)
        else r
        for r in results()
    ]
    assert verdicts(quadratic)[8:10] == ["NOT met", "NOT met"]
    found = {v.what: v.found for v in targets.verdicts(results())}
    assert found["LSH-4, default at n = 65536"] == "12× at n = 65536"
    assert found["LSH-4, pallas at n = 65536"] == "15× at n = 65536"
    assert found["LSH-4, pallas (C = 64) against flash"] == "faster from n = 8192"


def test_a_ratio_is_taken_turn_by_turn():
    """What slows one turn slows both of it, and is no part of the ratio."""
    a, b = row("flash", 1024, (10.0, 40.0, 30.0)), row("lsh-4", 1024, (5.0, 20.0, 10.0))
    assert targets.ratio(a, b) == pytest.approx(2.0)
    other = row("lsh-4", 1024, (1.0, 20.0, 30.0), turns="another time")
    assert targets.ratio(a, other) == pytest.approx(30 / 20)


def test_a_bound_counts_what_the_equation_evaluates():
    case = row("additive", 8192, 1).case
    forward = dataclasses.replace(case, passes="forward")
    pairs = 8192 * 8193 // 2
    assert tanh_evaluations(forward) == 8 * 8 * 64 * pairs
    assert tanh_evaluations(case) == 2 * tanh_evaluations(forward)
    assert tanh_evaluations(dataclasses.replace(forward, causal=False)) == 64 * 64 * 8192**2
    assert tanh_evaluations(tanh_case(2**22, "float32")) == 2**22


def test_the_report_shows_what_failed_and_what_refused():
    checked = [
        Checked(Check("dot", "full", "dense", "float32"), "pass", "context: 0.1", {"context": 0.1}),
        Checked(Check("dot", "full", "cudnn", "float32"), "refused", "half precision only"),
        Checked(Check("dot", "full", "pallas", "float32"), "fail", "d_q: 7", {"d_q": 7.0}),
    ]
    timed = results() + [row("lsh-1", 65536, 5.0)]
    environment = {"device": "NVIDIA H200"}
    told = SoFar(checked + timed, ["x"], planned=99, command="c", wheres=[Where(environment)])
    text = report.markdown(told, environment, Settings())
    for part in ("of 99 rows so far", "half precision only", "What failed", "d_q: 7", " met |"):
        assert part in text, part
    assert "1e+12 evaluations/s in bfloat16" in text
    assert "24×" in text  # one round against flash at the longest length
    assert "Not done yet: x." in text and "| NVIDIA H200 |" in text.split("## Where")[1]


def test_the_figures_show_flash_beside_the_others(tmp_path):
    """And no exponents: from length to length the batch changes."""
    drawn = {name: report.figure(results(), name, "NVIDIA H200") for name in ("time", "memory")}
    for figure in drawn.values():
        (axes,) = figure.axes
        words = {text.get_text() for text in axes.texts}
        assert {"flash", "lsh-4", "lsh-4:pallas", "exact", "additive"} <= words
        assert not any("^{" in word for word in words)
        assert "65536 tokens or one sequence" in figure.texts[0].get_text()
        assert figure.texts[0].get_text().endswith("NVIDIA H200")
    figure_files.save(drawn, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    assert report.figure([], "time", "NVIDIA H200") is None
