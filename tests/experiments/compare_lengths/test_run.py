import dataclasses
import itertools
from pathlib import Path

import pytest

from attnlab.bench import trends
from attnlab.bench.case import Case, Result
from attnlab.bench.roofline import Peak
from attnlab.runs import remaining
from attnlab.runs import rows as rows_module
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from experiments.compare_lengths import run as compare
from experiments.compare_lengths.settings import Settings
from tests.bench import rows

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results" / "cpu"


def of_rows(case: Case) -> Result:
    return dataclasses.replace(rows.row(case.label, case.length, case.passes), case=case)


class Recorder:
    """Stands in for a `Runner`: keeps what was asked of it, and says what a table of rows says."""

    environment = {
        "platform": "cpu", "device": "Abacus 9000", "devices": 1, "cpus": 2,
        "input": {"name": "a text", "sha256": "1"}, "untested": ["keras", "jax"],
        "versions": {"jax": "1", "keras": "2"},
    }  # fmt: skip

    def __init__(self, answer=None):
        self.log = []
        self._answer = answer or of_rows

    def run(self, case: Case, *, run: bool = True, tell=None) -> Result:
        self.log.append((str(case), run))
        return self._answer(case) if run else Result(case, "too_slow", "not run")

    def peak(self, unit):
        return Peak(unit, 1e9)

    def retire(self):
        self.log.append("fresh")

    def last_words(self):
        return ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def measured(earlier, length, **limits):
    runner = Recorder()
    result = compare.measure_case(Case("dot", length), earlier, Settings(**limits), runner)
    ((_, ran),) = runner.log
    return ran, result


def test_prediction_continues_the_last_two_lengths():
    quadratic = [rows.row("dot", n) for n in (512, 1024, 2048)]  # 20 ms at 1024
    assert trends.predict(quadratic, 8192) == pytest.approx(0.02 * 64)
    assert trends.predict(quadratic[:1], 1024) == pytest.approx(0.01)  # linear at least
    assert trends.predict([], 1024) == 0.0
    jump = [rows.row("dot", 512), rows.row("dot", 1024, seconds=(9.0,))]
    assert trends.predict(jump, 2048) == pytest.approx(36.0)  # no steeper than n²


def test_a_case_that_would_take_too_long_is_only_compiled():
    earlier = [rows.row("dot", n) for n in (512, 1024)]
    assert measured(earlier, 8192, case_seconds=2.0)[0]
    ran, result = measured(earlier, 8192, case_seconds=1.0)
    message = "not run: about 1 s a call, by shorter lengths (limit 1 s)"
    assert not ran and result.message == message


def test_after_one_too_slow_length_the_longer_ones_are_only_compiled():
    earlier = [rows.row("dot", 512, status="too_slow", seconds=())]
    ran, result = measured(earlier, 1024, case_seconds=60.0)
    assert not ran and result.message == "not run: n = 512 was already too slow"


def test_a_case_that_was_seen_to_grow_too_large_is_only_compiled():
    earlier = [rows.row("dot:dense", n) for n in (512, 1024)]  # 128 MiB at 1024
    assert measured(earlier, 2048, case_gib=0.6)[0]
    ran, result = measured(earlier, 4096, case_gib=0.6)
    assert not ran and result.status == "too_large" and result.memory_bytes > 1.9 * 2**30
    assert result.message == "needs about 1.98 GiB of 614 MiB allowed"


def run(tmp_path, monkeypatch, answer, resume=None, **settings):
    runner = Recorder(answer)
    monkeypatch.setattr(compare, "Runner", lambda **_: runner)
    flags = dict(mechanisms=("dot", "lsh-4"), passes=("forward",), lengths=(512, 1024, 2048))
    chosen = Settings(**flags | settings)
    folder = Folder.fresh("compare_lengths", tmp_path, chosen.as_json())
    if resume is not None:
        folder = Folder.kept("compare_lengths", resume)
    return compare.compare(chosen, folder), runner.log, folder


def kept(folder: Folder) -> dict[str, Result]:
    rows_ = Rows(folder, compare.key_of, [Result, Peak]).kept.values()
    return {str(x.row.case): x.row for x in rows_ if isinstance(x.row, Result)}


def busy(case: Case) -> Result:
    """A machine on which other work slows one case down, the first time."""
    held_up = case.mechanism == "dot" and case.length == 1024 and case not in busy.seen
    busy.seen.add(case)
    row = of_rows(case)
    return dataclasses.replace(row, seconds=tuple(s * (40 if held_up else 1) for s in row.seconds))


def test_a_run_goes_length_by_length_and_repeats_what_does_not_fit_in(
    tmp_path, monkeypatch, capsys
):
    busy.seen = set()
    # Before the run, then before and after each case: lsh at 1024 tokens ends among other work.
    loads = iter([2.1] + [0.5] * 7 + [9.0] + [2.1] * 30)
    monkeypatch.setattr(compare.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    clock = itertools.count()
    monkeypatch.setattr(rows_module, "now", lambda: f"2026-11-01T00:00:{next(clock):02}")
    written, markdown = [], compare.report.markdown
    monkeypatch.setattr(
        compare.report, "markdown",
        lambda told, **given: written.append(told.rows[-1].case.length) or markdown(told, **given),
    )  # fmt: skip
    status, log, folder = run(tmp_path, monkeypatch, busy)
    out = capsys.readouterr().out
    planned = [entry for entry in log if entry != "fresh"]
    lengths = [512, 512, 1024, 1024, 2048, 2048]
    names = ["dot", "lsh-4"] * 3
    want = [f"{name}, n = {n}, forward" for name, n in zip(names, lengths, strict=True)]
    assert status == 0 and [words for words, _ in planned[:6]] == want
    assert log[2] == log[5] == "fresh"  # a process a length
    assert [words for words, _ in planned[6:]] == [want[2], want[4]]
    assert "about" in out and "s left" in out and "2 cases have times that disagree" in out
    # The tables are shown after each of three lengths, and not again after a repeated case.
    assert out.count("Time so far:") == 3 and written == [512, 1024, 2048]
    found = kept(folder)
    again = found[want[2]]
    assert again.median_seconds == pytest.approx(0.02) and again.other_seconds == 40 * 0.02
    assert found[want[0]].other_seconds is None
    assert "busy machine" not in out and [row.busy for row in found.values()].count(True) == 1
    assert "10 of 10 cases and peaks measured" in out
    assert "keras" not in (folder.path / "report.md").read_text()
    # A resumed run repeats nothing twice.
    lost = dataclasses.replace(found[want[5]], status="failed", seconds=())
    folder.append(
        dataclasses.asdict(lost) | {"begun": "2026-10-01", "time": "2026-10-02", "environment": {}}
    )
    status, log, folder = run(tmp_path, monkeypatch, busy, resume=folder.path)
    assert status == 0 and [entry for entry in log if entry != "fresh"] == [(want[5], True)]


def test_a_case_that_is_lost_the_second_time_says_why():
    first = rows.row("dot", 512, seconds=(0.5,))
    second = dataclasses.replace(first, status="killed", message="SIGKILL", seconds=())
    kept = compare.faster(first, second)
    assert (kept.status, kept.seconds, kept.other_seconds) == ("ok", (0.5,), 0.5)
    assert kept.message == "once more: killed: SIGKILL"


def test_on_an_accelerator_each_line_has_a_process_at_each_length(tmp_path, monkeypatch):
    monkeypatch.setitem(Recorder.environment, "platform", "gpu")
    _, log, _ = run(tmp_path, monkeypatch, None, passes=("forward", "forward_backward"))
    assert log[2] == log[5] == log[8] == "fresh" and log.count("fresh") == 5


def test_a_resumed_run_is_about_the_same_text(tmp_path, monkeypatch):
    _, _, folder = run(tmp_path, monkeypatch, None)
    monkeypatch.setitem(Recorder.environment, "input", {"name": "a text", "sha256": "2"})
    assert run(tmp_path, monkeypatch, None, resume=folder.path)[0] == 0  # nothing is missing
    rows_ = (path := folder.path / "results.jsonl").read_text().splitlines(keepends=True)
    for left in (rows_[1:], [rows_[0].replace('"ok"', '"killed"'), *rows_[1:]]):
        path.write_text("".join(left))
        with pytest.raises(Invalid, match="is about other data than a text is now"):
            run(tmp_path, monkeypatch, None, resume=folder.path)


def test_pmap_runs_over_the_devices_that_are_asked_for_or_are_there(tmp_path, monkeypatch):
    given = []
    monkeypatch.setitem(Recorder.environment, "devices", 2)
    monkeypatch.setattr(compare, "Runner", lambda **some: given.append(some) or Recorder())
    asked = Settings(
        mechanisms=("dot",), passes=("forward",), lengths=(512,), batch=(2,), parallel="pmap",
        devices=(2,),
    )  # fmt: skip
    folder = Folder.fresh("compare_lengths", tmp_path, asked.as_json())
    assert compare.compare(asked, folder) == 0 and given[0]["devices"] == 2
    (found,) = kept(folder).values()
    assert (found.case.parallel, found.case.devices) == ("pmap", 2)
    there = dataclasses.replace(asked, devices=(), batch=(3,))
    folder = Folder.fresh("compare_lengths", tmp_path / "none", there.as_json())
    with pytest.raises(Invalid, match="--batch=3 does not divide over 2 devices"):
        compare.compare(there, folder)
    assert given[1]["devices"] is None and not (tmp_path / "none").exists()


@pytest.mark.parametrize(("status", "lost"), [("too_large", 0), ("too_slow", 0), ("killed", 1)])
def test_a_run_with_a_lost_case_is_not_complete(status, lost, tmp_path, monkeypatch):
    def answer(case):
        return dataclasses.replace(of_rows(case), status=status, seconds=())

    found, _, _ = run(tmp_path, monkeypatch, answer, lengths=(512,))
    assert found == lost


def test_a_kept_run_would_have_said_the_time_that_was_left():
    folder = Folder.kept("compare_lengths", KEPT)
    kept = Rows(folder, compare.key_of, [Result, Peak])
    settings = Settings.from_json(folder.settings)
    comparison = compare.Comparison(settings, kept, Recorder(), folder)
    cases, whole, found = comparison.cases, dict(kept.kept), []
    spent = remaining.spent({case: whole[case] for case in cases})
    for i in range(1, len(cases)):
        done, left = sum(spent[x] for x in cases[:i]), sum(spent[x] for x in cases[i:])
        kept.kept = {case: whole[case] for case in cases[:i]}
        if min(done, left) >= 60:
            found.append(comparison.job().seconds_left(comparison.items[i:]) / left)
    assert len(found) > 10 and 0.4 < min(found) and max(found) < 2.5


def test_cases_come_length_by_length():
    settings = Settings(
        mechanisms=("lsh-4", "dot"), lengths=(64, 32), implementation=("dense", "blockwise")
    )
    cases = settings.cases(local_devices=1)
    one_length = ["lsh-4"] * 2 + ["dot:dense"] * 2 + ["dot:blockwise"] * 2
    assert [c.label for c in cases] == one_length * 2
    assert [c.length for c in cases] == [32] * 6 + [64] * 6


def test_a_mechanism_may_say_how_it_is_computed():
    names = ("exact", "exact:dense", "additive", "lsh-4:pallas", "exact:dense")
    cases = Settings(mechanisms=names, lengths=(8,), passes=("forward",)).cases(1)
    labels = ["exact", "exact:dense", "additive", "lsh-4:pallas"]
    assert [c.label for c in cases] == labels
    assert {"exact", "exact:dense"} < {c.label for c in Settings().cases(1)}
    for bad, valid in (("lsh-4:dense", "pallas, sorted"), ("dot:fast", "dense, blockwise")):
        with pytest.raises(ValueError, match=f"--mechanisms={bad}: .*valid: {valid}"):
            Settings(mechanisms=(bad,))


def test_pmap_takes_every_device_and_jit_one():
    def devices(**flags):
        return Settings(batch=(4,), **flags).cases(local_devices=4)[0].devices

    assert (devices(), devices(parallel="pmap"), devices(devices=(2,))) == (1, 4, 2)
    with pytest.raises(ValueError, match="--devices=4: this machine has 2; give fewer"):
        Settings(batch=(4,), devices=(4,)).cases(local_devices=2)


def test_cases_over_devices_have_the_same_work_and_as_much_a_device():
    settings = Settings(devices=(2, 1), batch=(2,), lengths=(64,), mechanisms=("dot",))
    cases = settings.cases(local_devices=2)
    assert [(c.devices, c.batch, c.passes) for c in cases] == [
        (devices, batch, passes)
        for devices, batch in ((1, 2), (2, 2), (2, 4))
        for passes in ("forward", "forward_backward")
    ]
    assert Settings.implied({"devices": (1, 2)}) == {"lengths": (4096,)}
