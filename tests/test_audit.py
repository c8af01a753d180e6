"""The judge of models is judged: it accuses each fault, and nothing that is right."""

import re

import pytest

from attnlab import testing
from tests import audited
from tests.daily import daily


def model(subject):
    logits, decode = subject if isinstance(subject, tuple) else (subject, None)
    initial = None if decode is None else audited.initial
    return testing.as_model(logits, vocab_size=audited.V, decode=decode, initial=initial)


@pytest.mark.parametrize("name", audited.BROKEN)
def test_no_fault_is_missed(name):
    contract, subject = audited.BROKEN[name]
    outcome = testing.outcome(model(subject), contract)
    assert outcome.verdict == "no" and re.search("logits.*is .*, not|differ by", outcome.words)


@pytest.mark.parametrize("name", daily(audited.RIGHT, "Fourier", "a cache of a window"))
def test_nothing_right_is_accused(name):
    outcomes = [testing.outcome(model(audited.RIGHT[name]), x) for x in testing.MODEL_CONTRACTS]
    assert not testing.Report(tuple(outcomes)).broken
