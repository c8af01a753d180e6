"""One case in this process."""

import dataclasses
import time

import pytest

from attnlab.bench import inputs, measure
from attnlab.bench.case import Case, Result

TINY = Case("exact", 16, num_heads=1, head_dim=4, ops_only=True)


@pytest.mark.parametrize("keep", [False, True])
def test_memory_is_watched_then_kept_and_a_call_is_timed_without_what_watches_it(monkeypatch, keep):
    """Watching maps and unmaps every block, so what is kept is so behind it."""
    done = []
    peak_of = measure.memory.peak_of

    def watch(run):
        done.append("watch")
        time.sleep(0.3)
        return peak_of(run)

    monkeypatch.setattr(measure.memory, "peak_of", watch)
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: done.append("keep"))
    case = dataclasses.replace(TINY, keep_memory=keep)
    assert measure.prepare(case, inputs.read()).one_call < 0.3
    assert done == ["watch", "watch", "keep"][: 3 if keep else 2]


def test_a_call_that_is_slow_while_it_is_watched_is_timed_with_memory_kept(monkeypatch):
    monkeypatch.setattr(measure.memory, "peak_of", lambda run: (9.0, 0))
    case = dataclasses.replace(TINY, keep_memory=True)
    assert measure.prepare(case, inputs.read(), limit_seconds=9).sample() < 9


@pytest.mark.parametrize(("seconds", "before"), [(0.01, {"run"}), (0.2, set())])
def test_a_short_program_works_before_its_first_sample(monkeypatch, seconds, before):
    done = []
    result = Result(Case("exact", 16), "ok")
    run = lambda: done.append("run") or time.sleep(seconds)  # noqa: E731
    again = lambda calls: done.append("sample") or seconds  # noqa: E731
    program = measure.Program(result, run, again, list, seconds)
    monkeypatch.setattr(measure, "prepare", lambda *of, **how: program)
    measure.measure(result.case, inputs.read(), repeats=2)
    assert set(done[:-2]) == before and done[-2:] == ["sample", "sample"]
