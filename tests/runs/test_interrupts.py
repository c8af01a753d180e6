"""Ctrl-C ends a run wherever it falls."""

import gc
import signal
import time

import pytest

from attnlab.runs.interrupts import defer_interrupts, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_interrupt(number):
    before = signal.getsignal(number)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_inside_a_callback_of_the_collector_it_is_not_lost():
    sent = []

    def callback(phase, info):
        if not sent:
            sent.append(phase)
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(callback)
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            gc.collect()
            time.sleep(5)
    finally:
        gc.callbacks.remove(callback)
    assert sent


def test_a_report_is_written_in_peace():
    with interruptible(), defer_interrupts():
        signal.raise_signal(signal.SIGINT)
