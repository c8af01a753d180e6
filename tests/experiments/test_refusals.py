"""docs/refused_commands.md: each command of the page ends with status 2 and the line below."""

import dataclasses
import importlib
import re
import shlex

import pytest

from attnlab.runs import command_line
from attnlab.runs.flags import flag_of
from tests.several import ROOT

PAGE = (ROOT / "docs/refused_commands.md").read_text(encoding="utf-8")
REFUSED = re.findall(r"^\$ launch/local (.+)\n(.+)$", PAGE, re.MULTILINE)


def parse(words):
    """The status of a command that is parsed, and runs nothing."""
    settings = importlib.import_module(f"experiments.{words[0]}.settings").Settings
    return command_line.run(words, settings, lambda *_: 0, doc=None)


@pytest.mark.parametrize(("command", "line"), REFUSED)
def test_a_command_that_cannot_be_meant_is_refused_in_one_line(command, line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert parse(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.replace(f"{ROOT}/", "") == f"{line}\n"


@pytest.mark.parametrize(
    "command",
    [
        "finetune --train_file=README.md --dev_file=README.md --epochs=2",
        "language_model --input=README.md --models=exact --chunk_size=32",
        "translate --models=luong,rnn_search --dropout_rate=.1 --set=luong.dropout_rate=.2",
        "translate --dry_run --target=v5e",
        "translate --data_files=README.md --test_files=README.md --validation_files=README.md",
    ],
)
def test_a_flag_that_has_what_it_needs_is_taken(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert parse(command.split()) == 0


def test_the_page_has_every_experiment_of_many_flags():
    named = {command.split()[0] for command, _ in REFUSED}
    trained = {"translate", "finetune", "pretrain", "language_model", "long_range"}
    assert named >= {*trained, "compare_lengths"}
    assert len(REFUSED) == PAGE.count("\n$ ")


def test_every_condition_names_a_flag_of_the_same_experiment():
    for path in sorted((ROOT / "experiments").glob("*/settings.py")):
        settings = importlib.import_module(f"experiments.{path.parent.name}.settings").Settings
        about = {field.name: flag_of(field) for field in dataclasses.fields(settings)}
        for flag in about.values():
            for condition in (*flag.not_with, *" or ".join(flag.needs).split(" or ")):
                name, _, value = condition.partition("=")
                choices = about[name].choices if name else ()
                assert not value or not choices or value in choices, condition
