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


@pytest.mark.parametrize(("seconds", "calls"), [(0.01, 3), (0.2, 1)])
def test_a_short_program_works_before_it_is_timed_in_batches(monkeypatch, seconds, calls):
    """The two calls that are watched are slow, as those that map memory may be."""
    done = []

    def run():
        done.append("run")
        time.sleep(seconds if len(done) < 3 else seconds / 10)

    again = lambda calls: done.append("sample") or 9.0  # noqa: E731
    program = measure.Program(Result(TINY, "ok"), run, again, list)
    monkeypatch.setattr(measure, "_jax", lambda *of: program)
    result = measure.measure(TINY, inputs.read(), repeats=2)
    assert done[-2:] == ["sample", "sample"] and set(done[:-2]) == {"run"}
    assert (len(done) > 4) == (calls > 1) and result.calls_per_sample >= calls
