"""The command line of `tables`: its flags, the parts of a job array, and what a dry run says."""

import pytest

from attnlab.runs.command_line import command
from attnlab.runs.errors import Invalid
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, runs
from experiments.tables.settings import Settings
from tests.experiments import tiny
from tests.experiments.tables.made import keep_run, make_line


def test_only_names_the_tables_of_a_run():
    settings = Settings(scale="cpu", only=("xu1_dates", "lra1"))
    assert [str(cell) for cell in settings.cells()] == [
        "xu1_dates, COCO, Soft-Attention",
        "xu1_dates, COCO, Hard-Attention",
        "lra1, Transformer",
        "lra1, Local Attention",
        "lra1, Reformer",
    ]


def test_the_jobs_of_an_array_have_each_cell_once(monkeypatch):
    whole = Settings(scale="paper").cells()
    parts = [Settings(scale="paper", part=f"{i}/4").cells() for i in range(4)]
    assert sorted(map(str, whole)) == sorted(str(cell) for part in parts for cell in part)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert Settings.of_place({}) == {}
    numbers = {"ID": 6, "MIN": 2, "MAX": 8, "STEP": 2, "COUNT": 4}
    for name, x in numbers.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(x))
    assert Settings.of_place({}) == {"part": "2/4"}
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    with pytest.raises(Invalid, match="the job array has gaps; give one without, such as 0-7, or"):
        Settings.of_place({})
    assert Settings.of_place({"part": "1/2"}) == {}
    named = command("tables", Settings, Settings(scale="paper", part="1/2").as_json())
    assert named == "launch/local tables --scale=paper --part=1/2"
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "4")
    assert "--part=2/4" in command(
        "tables", Settings, Settings(scale="paper", part="2/4").as_json()
    )
    monkeypatch.delenv("SLURM_ARRAY_TASK_MIN")
    with pytest.raises(Invalid, match="the job array says no SLURM_ARRAY_TASK_MIN; give --part"):
        Settings.of_place({})


def test_a_part_goes_on_in_the_array_that_began_it(no_figures, tmp_path, monkeypatch):
    made = []

    def run(words):
        made.append(words)
        keep_run(words, [make_line(0, {"exact match": 1})])
        return ""

    monkeypatch.setattr(runs, "run", run)
    flags = "--scale=cpu", "--only=xu1_dates", "--seeds=0", f"--run_dir={tmp_path}/0"
    array = {"ID": 0, "MIN": 0, "MAX": 1, "STEP": 1, "COUNT": 2}
    for name, x in array.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(x))
    assert tiny.run(experiment, *flags)[0] == 0 and tiny.run(experiment, *flags)[0] == 0
    assert len(made) == 1
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "2")
    status, _, err = tiny.run(experiment, *flags)
    assert status == 2 and "this job has --part=0/3, and the run 0/2; submit the job array" in err


def test_a_dry_run_names_every_row_with_the_command_of_its_run_and_makes_nothing(tmp_path):
    folder = tmp_path / "out"
    flags = "--scale=paper", "--only=luong4,luong4_perplexity", "--seeds=3", "--dry_run"
    out = tiny.finish(experiment, *flags, f"--output_dir={folder}")
    assert not folder.exists()
    runs = [run.splitlines() for run in out.strip().split("\n\n")[:-1]]
    rows = mapping.all_tables()["luong4"].rows
    assert [rows for rows, _ in runs] == [f"luong4, {x}; luong4_perplexity, {x}" for x in rows]
    dot = "--set=luong.score=dot --set=luong.half_width=10 --seeds=3"
    (of_dot,) = (command for rows, command in runs if "local-p, dot;" in rows)
    assert of_dot.startswith("    launch/local translate --preset=paper") and of_dot.endswith(dot)
    assert out.splitlines()[-2] == "15 runs for 30 of 30 rows"
