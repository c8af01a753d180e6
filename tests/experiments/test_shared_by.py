"""What a launcher reads of an experiment, SHARED_BY, is what the experiment does."""

import importlib
import inspect
import pkgutil

import pytest

import experiments
from attnlab.runs import command_line

NAMES = [
    name
    for _, name, is_package in pkgutil.iter_modules(experiments.__path__)
    if is_package and name != "results"
]


@pytest.mark.parametrize("name", NAMES)
def test_processes_and_jobs_share_what_the_experiment_says(name, monkeypatch):
    program = importlib.import_module(f"experiments.{name}.__main__")
    said = getattr(importlib.import_module(f"experiments.{name}"), "SHARED_BY", None)
    assert said in ("processes", "jobs", None)
    given = []
    signature = inspect.signature(command_line.run)
    monkeypatch.setattr(
        command_line, "run", lambda *a, **k: given.append(signature.bind(*a, **k).arguments)
    )
    program.main([name])
    [asked] = given
    assert asked.get("several", False) == (said == "processes")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    for key, value in {"MIN": "0", "MAX": "7", "STEP": "1", "COUNT": "8"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{key}", value)
    assert bool(asked["settings"].of_place({})) == (said == "jobs")
    assert said == "jobs" or name != "tables"
    assert said == "processes" or name != "translate"
