"""A file that is not there is said with the flag that gave it, the same way by every experiment."""

import dataclasses
import importlib
from pathlib import Path

import pytest

from attnlab.runs import command_line
from attnlab.runs.flags import flag_of

ROOT = Path(__file__).resolve().parents[2]
# What else each flag with a file needs, where another check would come first.
OTHERS = {
    ("long_range", "train_file"): ("--tasks=text", f"--test_file={__file__}"),
    ("long_range", "validation_file"): (
        "--tasks=text", f"--train_file={__file__}", f"--test_file={__file__}"
    ),
    ("long_range", "test_file"): ("--tasks=text", f"--train_file={__file__}"),
    ("finetune", "train_file"): (f"--dev_file={__file__}",),
    ("finetune", "dev_file"): (f"--train_file={__file__}",),
    ("finetune", "test_file"): (f"--train_file={__file__}", f"--dev_file={__file__}"),
    ("finetune", "input"): ("--made=order",),
    ("finetune", "init_from"): (f"--train_file={__file__}", f"--dev_file={__file__}"),
    ("pretrain", "init_from"): (f"--input={__file__}",),
    ("translate", "validation_files"): (f"--data_files={__file__}", f"--test_files={__file__}"),
    ("translate", "test_files"): (f"--data_files={__file__}", f"--validation_files={__file__}"),
    ("translate", "draw_file"): (f"--data_files={__file__}",),
    ("tables", "multi30k"): ("--scale=cpu", "--only=luong4"),
    ("tables", "text"): ("--scale=cpu", "--only=bert5"),
}  # fmt: skip


def flags_with_files():
    for path in sorted((ROOT / "experiments").glob("*/settings.py")):
        name = path.parent.name
        settings = importlib.import_module(f"experiments.{name}.settings").Settings
        for field in dataclasses.fields(settings):
            if flag_of(field).is_path:
                yield name, field.name, settings


FLAGS = list(flags_with_files())


def test_every_flag_that_needs_others_is_there():
    assert set(OTHERS) < {(name, flag) for name, flag, _ in FLAGS} and len(FLAGS) > 18


@pytest.mark.parametrize(("name", "flag", "settings"), FLAGS)
def test_a_missing_file_is_said_with_its_flag(name, flag, settings, tmp_path, capsys):
    words = [name, f"--{flag}=gone.tsv", *OTHERS.get((name, flag), ())]
    words.append(f"--output_dir={tmp_path}/out")
    assert command_line.run(words, settings, lambda *_: 0, doc=None) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{name}: --{flag}=")
    assert err.endswith("gone.tsv: there is no such file\n") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
