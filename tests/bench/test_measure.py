"""One case in this process."""

import pytest

from attnlab.bench import inputs, measure
from attnlab.bench.case import Case


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
