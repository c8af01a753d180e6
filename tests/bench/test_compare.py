import pytest

from attnlab.bench import compare
from attnlab.bench.case import Case, Result
from attnlab.bench.settings import Settings
from tests.bench import rows


class Recorder:
    """Stands in for a `Runner`: notes whether a case was to run."""

    def run(self, case: Case, *, run: bool = True) -> Result:
        self.ran = run
        return Result(case, "ok" if run else "too_slow", "" if run else "not run")


def measured(earlier, length, limit):
    runner = Recorder()
    case = Case("dot", length)
    result = compare._measured(case, earlier, Settings(case_seconds=limit), runner)
    return runner.ran, result.message


def test_prediction_continues_the_last_two_lengths():
    quadratic = [rows.row("dot", n) for n in (512, 1024, 2048)]  # 20 ms at 1024
    assert compare.predicted_seconds(quadratic, 8192) == pytest.approx(0.02 * 64)
    assert compare.predicted_seconds(quadratic[:1], 1024) == pytest.approx(0.01)  # linear at least
    assert compare.predicted_seconds([], 1024) == 0.0


def test_a_case_that_would_take_too_long_is_only_compiled():
    earlier = [rows.row("dot", n) for n in (512, 1024)]
    assert measured(earlier, 8192, limit=2.0) == (True, "")
    ran, message = measured(earlier, 8192, limit=1.0)
    assert not ran and message == "not run: about 1 s a call by shorter lengths, limit 1 s"


def test_after_one_too_slow_length_the_longer_ones_are_only_compiled():
    earlier = [rows.row("dot", 512, status="too_slow", seconds=())]
    ran, message = measured(earlier, 1024, limit=60.0)
    assert not ran and message == "not run: n = 512 was already too slow"


@pytest.mark.parametrize("status", ["ok", "too_large", "too_slow"])
def test_resume_keeps_what_has_an_answer(status):
    assert compare.finished(rows.row("dot", 512, status=status))


@pytest.mark.parametrize("status", ["failed", "killed"])
def test_resume_tries_failures_again(status):
    assert not compare.finished(rows.row("dot", 512, status=status))
    assert not compare.finished(None)


def test_settings_of_another_version_are_refused():
    with pytest.raises(ValueError, match="settings of another version"):
        Settings.from_json({"batch": 1, "colour": "red"})


def test_cases_come_mechanism_by_mechanism_short_ones_first():
    settings = Settings(
        mechanisms=("lsh", "dot"), lengths=(64, 32), implementation=("dense", "blockwise")
    )
    cases = settings.cases(local_devices=1)
    assert [c.label for c in cases] == ["lsh"] * 4 + ["dot (dense)"] * 4 + ["dot (blockwise)"] * 4
    assert [c.length for c in cases[:4]] == [32, 32, 64, 64]


def test_pmap_takes_every_device_and_jit_one():
    def devices(**flags):
        return Settings(batch=4, **flags).cases(local_devices=4)[0].devices

    assert (devices(), devices(parallel="pmap"), devices(devices=2)) == (1, 4, 2)
    with pytest.raises(ValueError, match="--devices=4: this machine has 2; give fewer"):
        Settings(batch=4, devices=4).cases(local_devices=2)
