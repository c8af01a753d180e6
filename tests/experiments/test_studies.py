"""No study goes on with a training of other flags, whichever flag was changed; and its presets."""

import copy
import dataclasses
import importlib
import json
import pkgutil
import types

import pytest

import experiments
from attnlab.runs import command_line
from attnlab.runs.flags import flag_of, format_value, kind_of
from attnlab.studies.study import Cell, Study, identity
from attnlab.training.flags import FREE

# Flags without which the settings of a study are not valid.
NEEDED = {"pretrain": {"input": __file__}, "finetune": {"made": "order", "input": __file__}}


def studies():
    for _, name, is_package in pkgutil.iter_modules(experiments.__path__):
        if is_package and importlib.util.find_spec(f"experiments.{name}.__main__"):
            program = importlib.import_module(f"experiments.{name}.__main__")
            for value in vars(program).values():
                if isinstance(value, type) and issubclass(value, Study) and value is not Study:
                    yield name, value


STUDIES = dict(studies())
FLAGS = [
    (name, field.name) for name, kind in STUDIES.items() for field in dataclasses.fields(kind.flags)
]


def settings_of(name):
    return STUDIES[name].flags(**NEEDED.get(name, {}))


def other(settings, name):
    """Another value of a flag, which need not go with the others."""
    (field,) = (one for one in dataclasses.fields(settings) if one.name == name)
    value, kind = getattr(settings, name), kind_of(type(settings))[name]
    first = value[0] if isinstance(value, tuple) and value else value
    if choices := [x for x in flag_of(field).choices if x != first]:
        first = choices[0]
    elif kind is bool:
        first = not first
    elif kind is str:
        first = f"{first}x"
    else:
        first = kind((first or 0) + (1 if kind is int else 0.25))
    return (first,) if isinstance(value, tuple) else first


def identity_of(name, settings):
    study = STUDIES[name](settings, types.SimpleNamespace(name="x", digest="y"))
    return identity(study, Cell(dict.fromkeys(study.axes, "x"), 0))


def test_the_studies_are_found():
    assert {"pretrain", "long_range"} <= {*STUDIES} and len(FLAGS) > 50


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_a_changed_flag_is_refused_or_named_free(name, flag, tmp_path, capsys):
    kind, settings = STUDIES[name], settings_of(name)
    changed = copy.copy(settings)
    object.__setattr__(changed, flag, other(settings, flag))
    free = flag in (*FREE, *kind.free)
    in_cell = flag in (*kind.axes.values(), "seeds")
    assert (identity_of(name, settings) == identity_of(name, changed)) == (free or in_cell)

    (tmp_path / "settings.json").write_text(json.dumps(settings.as_json()))
    value = getattr(changed, flag)
    word = f"--{flag}={str(value).lower() if isinstance(value, bool) else format_value(value)}"
    command = [name, f"--resume={tmp_path}", word]
    given = {"doc": None, "free": (*FREE, *kind.free)}
    status = command_line.run(command, kind.flags, lambda *_: 0, **given)
    err = capsys.readouterr().err
    assert (status == 2 and f"--{flag}=" in err and " differs from " in err) == (not free), err


@pytest.mark.parametrize("name", STUDIES)
def test_free_and_varied_flags_are_flags(name):
    kind = STUDIES[name]
    names = {field.name for field in dataclasses.fields(kind.flags)}
    assert {*FREE, *kind.free, *kind.axes.values(), *kind.shown, "seeds"} <= names


@pytest.mark.parametrize(
    ("name", "preset"), [(n, p) for n, kind in STUDIES.items() for p in kind.flags.presets]
)
def test_presets_are_flags_that_go_together(name, preset):
    flags = STUDIES[name].flags
    kept = flags.presets[preset]
    assert {*kept} <= {field.name for field in dataclasses.fields(flags)}
    assert flags(**NEEDED.get(name, {}) | dict(kept))
    assert not next(iter(flags.presets.values()))  # the first one is the flags' own defaults
