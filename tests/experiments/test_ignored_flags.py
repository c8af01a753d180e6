"""A flag that would count for nothing is refused, and so is a value that comes twice."""

import importlib

import pytest

from attnlab.runs import command_line


def parsed(name, flags):
    settings = importlib.import_module(f"experiments.{name}.settings").Settings
    return command_line.run([name, *flags.split()], settings, lambda *_: 0, doc=None)


FILE = f"={__file__}"
FINETUNE = f"--train_file{FILE} --dev_file{FILE}"


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("finetune", f"{FINETUNE} --epochs=2 --steps=3", "--epochs=2 and --steps=3 both say how"),
        ("long_range", "--tasks=listops --data_dir=/nowhere", "--data_dir=/nowhere: needs --tfds_"),
        ("translate", "--models=luong --dropout_rate=.1 --set=luong.dropout_rate=.2",
         "--dropout_rate=0.1: --set says it of every model; leave it out"),
        ("translate", "--tfds_name=x --direction=-", "--direction=-: give two languages, as de-en"),
        ("pretrain", f"--input{FILE} --masking=80/10/10,080/10/10", "--masking=080/10/10: give"),
    ],
)  # fmt: skip
def test_flags_that_count_for_nothing_are_refused(name, flags, said, capsys):
    assert parsed(name, flags) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{name}: {said}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("finetune", f"{FINETUNE} --epochs=2"),
        ("translate", "--models=luong,rnn_search --dropout_rate=.1 --set=luong.dropout_rate=.2"),
    ],
)
def test_flags_that_count_are_not(name, flags):
    assert parsed(name, flags) == 0
