"""One case in this process."""

import time

import pytest

from attnlab.bench import inputs, measure
from attnlab.bench.case import Case, Result


@pytest.mark.parametrize("keep", [False, True])
def test_memory_is_kept_where_that_is_asked_once_it_has_been_watched(monkeypatch, keep):
    """Watching maps and unmaps every block, so what is kept is so behind it."""
    done = []
    peak_of = measure.memory.peak_of
    monkeypatch.setattr(measure.memory, "peak_of", lambda run: done.append("watch") or peak_of(run))
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: done.append("keep"))
    case = Case("exact", 16, num_heads=1, head_dim=4, ops_only=True, keep_memory=keep)
    assert measure.measure(case, inputs.read(), repeats=1).seconds
    assert done == ["watch", "watch", "keep"][: 3 if keep else 2]


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
