"""A warm-up is as long as it is asked for, or fits into the steps that are: one rule for all."""

import importlib

import pytest

from attnlab.runs import command_line

NAMES = ("language_model", "long_range", "pretrain")


def parsed(name, *flags):
    """The status and the settings of a command line."""
    settings = importlib.import_module(f"experiments.{name}.settings").Settings
    found = []
    given = [f"--input={__file__}"] if name == "pretrain" else []
    run = command_line.run
    status = run([name, *given, *flags], settings, lambda x, _: found.append(x) or 0, doc=None)
    return status, found[0] if found else None


@pytest.mark.parametrize("name", NAMES)
def test_a_warm_up_that_was_not_asked_for_fits_into_the_steps(name):
    assert parsed(name, "--steps=150")[1].warmup_steps == 75
    assert parsed(name, "--steps=900")[1].warmup_steps == 100
    assert parsed(name, "--steps=1")[0] == 0
    assert parsed(name, "--steps=90", "--warmup_steps=80")[1].warmup_steps == 80
    assert parsed(name, "--preset=gpu", "--steps=60")[1].warmup_steps == 30
    assert parsed(name, "--preset=gpu")[1].warmup_steps >= 1000
    settings = parsed(name, "--steps=150")[1]
    again = command_line.command(name, type(settings), settings.as_json()).split()[2:]
    assert parsed(name, *again)[1] == settings
