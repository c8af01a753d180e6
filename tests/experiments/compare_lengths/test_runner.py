"""One worker process after the other: what dies or does not fit becomes a row, the rest go on."""

import dataclasses
import math
import os
import re
import signal
import time

import numpy as np
import pytest

from attnlab.bench.case import Case
from experiments.compare_lengths.runner import Runner, difference
from experiments.compare_lengths.worker import some_of

SMALL = dict(num_heads=2, head_dim=8, ops_only=True)
OK = Case("dot", 32, **SMALL)


@pytest.fixture(scope="module")
def started():
    with Runner(devices=None, input_path=None, repeats=2, case_seconds=60.0) as found:
        yield found


def test_a_case_is_measured(started):
    result = started.run(OK)
    assert (result.status, result.case) == ("ok", OK)
    assert len(result.seconds) == 2 and min(result.seconds) > 0
    assert result.compile_seconds > 0 and result.calls_per_sample >= 1
    assert result.analysis_bytes >= 4 * 32 * 16 * 4  # three inputs and an output
    assert started.environment["platform"] == "cpu" and started.environment["versions"]["jax"]


def test_values_are_compared_in_every_head_and_many_entries():
    places = [int(x) for x in some_of(np.arange(4096 * 8 * 64))]  # of [L, N, H]
    assert {place // 64 % 8 for place in places} == set(range(8))
    assert len(places) == 512 and len({place % 64 for place in places}) > 32


def test_what_would_not_fit_is_known_before_it_runs(started):
    case = dataclasses.replace(OK, length=2**22, implementation="dense")
    began = time.monotonic()
    result = started.run(case)
    assert result.status == "too_large" and time.monotonic() - began < 60
    assert re.fullmatch(r"needs \d+ TiB of [\d.]+ [GM]iB free", result.message)
    assert result.analysis_bytes > 2 * 4 * 2**44 and not result.seconds
    assert started.run(OK).status == "ok"


def test_compiling_only_tells_the_memory(started):
    result = started.run(OK, run=False)
    assert (result.status, result.seconds) == ("too_slow", ())
    assert result.analysis_bytes == started.run(OK).analysis_bytes


def test_an_exception_is_a_row(started):
    result = started.run(dataclasses.replace(OK, implementation="cudnn"))
    assert result.status == "failed" and "cudnn" in result.message
    assert "Traceback" in started.errors()
    assert started.run(OK).status == "ok"


@pytest.mark.slow
def test_a_killed_worker_is_a_row(started):
    assert started.run(OK).status == "ok"  # a worker is there
    endless = dataclasses.replace(OK, mechanism="additive", length=2**17)

    def kill(words):
        if words.endswith("running …"):
            os.kill(started.pid, signal.SIGKILL)

    result = started.run(endless, tell=kill)
    assert result.status == "killed" and "SIGKILL" in result.message
    assert started.run(OK).status == "ok"


@pytest.mark.slow
def test_pmap_over_two_devices_and_one_that_does_not_end_is_stopped():
    slow = dataclasses.replace(OK, mechanism="additive", length=2**17)
    settings = dict(devices=2, input_path=None, repeats=1, case_seconds=1.0)
    with Runner(**settings, case_bytes=2**30) as found:
        over_two = found.run(dataclasses.replace(OK, batch=2, devices=2, parallel="pmap"))
        assert over_two.status == "ok" and found.environment["devices"] == 2
        large = found.run(dataclasses.replace(OK, length=2**22, implementation="dense"))
        assert large.status == "too_large" and large.message.endswith("TiB of 1.00 GiB allowed")
        said = []
        found.retire()
        result = found.run(slow, tell=said.append)
        assert said[:2] == ["starting a process …", "compiling …"]
        assert any(re.fullmatch(r"compiled in [\d.]+ s, running …", words) for words in said)
        assert result.status == "too_slow" and result.message == "stopped after 1 s while running"
        assert result.analysis_bytes > 0  # known before it ran


def test_programs_whose_values_are_not_numbers_differ():
    case = dataclasses.replace(OK, mechanism="exact")
    ones, zeros, none = [1.0, 2.0], [0.0, 0.0], [1.0, float("nan")]
    assert difference(case, case, [ones, zeros], [ones, zeros]) == 0
    assert difference(case, case, [ones, zeros], [ones, ones]) == 1
    for ours, theirs in ((none, ones), (ones, none), (none, none)):
        assert math.isnan(difference(case, case, [ones, ours], [ones, theirs]))


def test_a_worker_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    runner = Runner(devices=None, input_path=None, repeats=1, case_seconds=1.0)
    with pytest.raises(ValueError, match="no_such_platform"), runner:
        pass


@pytest.mark.slow
def test_a_pair_is_timed_in_turns_where_both_compute_the_same(started, monkeypatch):
    told, do = [], started._do
    monkeypatch.setattr(started, "_do", lambda *of, **how: told.append(do(*of, **how)) or told[-1])
    base = dataclasses.replace(OK, mechanism="exact", ops_only=True)
    case = dataclasses.replace(base, mechanism="flax", against="exact")
    row = started.run_against(case, base)
    assert row.status == "ok" and len(row.ratios) == len(row.seconds) == 2, row
    assert row.calls_per_sample == told[0][1]["calls"] >= 1
    assert min(row.ratios) > 0 and row.memory_bytes
    apart = started.run_against(dataclasses.replace(case, causal=False), base)
    assert apart.status == "failed" and not apart.seconds
    assert apart.message.startswith("its values differ from those of exact by ")
    wrong = dataclasses.replace(base, mechanism="keras_dot", num_heads=2)
    lost = started.run_against(case, wrong)
    assert lost.status == "ok" and len(lost.seconds) == 2 and not lost.base_seconds
    assert lost.message.startswith("not timed against keras_dot: ")
