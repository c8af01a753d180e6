"""Runs that are kept, played again: what they would have said of the time that is left."""

from pathlib import Path

import pytest

from attnlab.bench.case import Case, Result
from attnlab.bench.roofline import Peak
from attnlab.runs import remaining
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Kept, Rows, Where
from experiments.compare_lengths.run import key_of, seconds_left
from tests.bench import rows

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results"


def ratios(name: str) -> list[float]:
    """What is said over what was true, from the first minute on, at each case of a kept run."""
    folder = Folder.kept("compare_lengths", KEPT / name)
    limits = {"repeats": folder.settings["repeats"], "limit": folder.settings["case_seconds"]}
    rows_ = Rows(folder, key_of, [Result, Peak]).kept
    kept = {case: one for case, one in rows_.items() if isinstance(case, Case)}
    spent, cases, found = remaining.spent(kept), list(kept), []
    for i in range(1, len(cases)):
        done = {case: kept[case] for case in cases[:i]}
        true = sum(spent[case] for case in cases[i:])
        if sum(spent[case] for case in done) >= 60 and true >= 10:
            found.append(seconds_left(cases[i:], done, **limits) / true)
    return found


# Of two targets nothing is known of the second where it begins.
@pytest.mark.parametrize(
    ("name", "most"),
    [("cpu", 1.3), ("cpu/alibi", 1.3), ("cpu_devices", 1.5), ("deviceless", 2.1)]
    + [("deviceless_reformer/length", 2.0)],
)
def test_a_kept_run_would_have_said_the_time_that_was_left(name, most):
    found = ratios(name)
    assert len(found) > 4 and max(found) < most and min(found) > 1 / most


def kept_of(seconds):
    """Rows of `dot` that took so many seconds of wall time each, by their case."""
    found, minute = {}, 0.0
    for case, wall in seconds.items():
        minute += wall / 60
        stamp = f"2026-11-01T00:{int(minute):02}:{minute % 1 * 60:09.6f}"
        where = Where(begun="2026-11-01T00:00:00", time=stamp)
        found[case] = Kept(rows.row("dot", case.length), where)
    return found


def left_of(lengths, done, wall=10.0, **options):
    cases = [Case("dot", n) for n in lengths]
    options = {"repeats": 5, "limit": 10.0} | options
    known = kept_of(dict.fromkeys(cases[:done], wall))
    return seconds_left(cases[done:], known, **options)


def test_what_is_not_the_calls_takes_as_long_as_before():
    # 5 ms a call at 512, 20 ms at 1024, 80 ms at 2048: 7 calls each.
    rest = 10.0 - 7 * (0.005 + 0.02) / 2
    assert left_of((512, 1024, 2048), 2) == pytest.approx(rest + 7 * 0.08)
    too_slow = left_of((512, 1024, 2048), 2, limit=0.01)  # so was 1024: only compiled
    assert too_slow == pytest.approx(10.0 - 7 * 0.005 / 2 + 0, abs=0.02)


def test_one_length_of_several_is_enough_after_a_minute():
    assert left_of((512, 1024), 1) is None and left_of((512,), 0) is None
    assert left_of((512, 1024), 1, wall=70.0) == pytest.approx(70.0 + 7 * 0.005)
    assert left_of((512, 1024), 2) is None  # nothing is left


def test_a_mechanism_that_was_not_seen_takes_as_long_as_the_others():
    done = kept_of({Case("dot", 512): 2.0, Case("dot", 1024): 6.0})
    left = [Case("lsh-4", 1024), Case("lsh-4", 512), Case("lsh-4", 64)]
    found = seconds_left(left, done, repeats=5, limit=10.0)
    assert found == pytest.approx(6 + 2 + 4)
