"""The time that is left of a training, by a clock that the tests move."""

from attnlab.training import curve


def test_a_training_says_its_first_step_and_then_something_each_minute(monkeypatch):
    now = 5.0
    monkeypatch.setattr(curve.time, "perf_counter", lambda: now)
    progress = curve.Progress(1000, 10, curve.Meter(steps=8, seconds=100.0), [])
    now = 25.0
    assert progress.stepped(11) == "step   11/1000  the first step, which compiles, took 20.0 s"
    now = 80.0
    assert progress.stepped(66) == ""
    now = 86.0
    assert progress.stepped(72) == "step   72/1000  1 steps/s  about 15 min left"
    row = progress.rates(72, 7000)  # the tokens of 8 steps were in the checkpoint
    assert (row["seconds"], row["steps_per_second"], row["tokens_per_second"]) == (
        181.0,
        1.0,
        100.0,
    )


def test_validations_are_in_no_rate_but_in_the_time_that_is_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr(curve.time, "perf_counter", lambda: now)
    progress = curve.Progress(30, 0, curve.Meter(), [])
    progress.stepped(1)
    now = 9.0
    progress.stepped(10)
    with progress.beside():
        now = 89.0
    now = 99.0
    assert progress.stepped(20) == "step 20/30  1 steps/s  about 52 s left"
    row = progress.rates(20, 2000)
    assert row["seconds"] == 99.0 and row["steps_per_second"] == 1.0
    now = 109.0
    assert progress.rates(30, 1000)["steps_per_second"] == 1.0


def test_a_row_of_the_first_step_alone_says_no_time(monkeypatch):
    now = 0.0
    monkeypatch.setattr(curve.time, "perf_counter", lambda: now)
    progress = curve.Progress(4, 0, curve.Meter(), [])
    now = 2100.0
    progress.stepped(1)
    row = progress.rates(1, 40)
    assert row["steps_per_second"] == 0.0004762 and "left" not in progress.line(1, row)
    now = 2101.0
    assert "1 steps/s  40 tokens/s  about 2 s left" in progress.line(2, progress.rates(2, 40))
