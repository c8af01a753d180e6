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
        ("translate", f"--models=rnn_encdec --data_files{FILE} --draw_file{FILE} --preset=cpu",
         f"--draw_file{FILE}: rnn_encdec has no attention to draw; leave it out"),
        ("long_range", "--starts=scratch,pretrained --steps=5000 --plateau=0.01",
         "--plateau=0.01: needs six validations, so that two lie in the last fifth; 1,000 steps"),
        ("long_range", "--plateau=1", "--plateau=1 is too large; give less than 1"),
        ("language_model", "--tasks=copy --equal_bits=1", "--equal_bits=1: needs text in --t"),
        ("language_model", f"--tasks=copy --input{FILE}", f"--input{FILE}: needs text in --tasks"),
        ("language_model", f"--input{FILE} --models=exact --eval_rounds=2", "--eval_rounds=2: no"),
        ("language_model", "--tasks=copy --copy_models=window-9 --chunk_size=7", "--chunk_size=7:"),
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
        ("language_model", f"--input{FILE} --tasks=text,copy --models=exact --chunk_size=32"),
        ("translate", "--models=luong,rnn_search --dropout_rate=.1 --set=luong.dropout_rate=.2"),
    ],
)
def test_flags_that_count_are_not(name, flags):
    assert parsed(name, flags) == 0
