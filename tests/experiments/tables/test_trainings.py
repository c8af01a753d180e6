"""The commands of trained rows, and which of a run's numbers are a row's."""

from importlib import import_module
from pathlib import Path

import pytest

from attnlab.runs import command_line
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, report
from experiments.tables.runs import Context
from experiments.tables.settings import LANGUAGES, MULTI30K
from experiments.tables.trained import TrainedTable
from tests.experiments.tables.made import make_line

TRAINED = {name: one for name, one in mapping.all_tables().items() if isinstance(one, TrainedTable)}


@pytest.fixture
def multi30k(tmp_path):
    """A folder with files of the names that Multi30k's have, which nothing reads here."""
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for split in MULTI30K:
        for language in LANGUAGES:
            (folder / f"{split}.{language}.gz").touch()
    return folder


DISTINCT = {repr(table.trainings): name for name, table in TRAINED.items()}.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name in DISTINCT for scale in TRAINED[name].scales]
)
def test_every_row_is_a_command_that_its_experiment_accepts(name, scale, multi30k, monkeypatch):
    monkeypatch.chdir(multi30k.parent)
    (text := multi30k.parent / "text.txt").touch()
    settings = experiment.Settings(
        only=(name,), scale=scale, multi30k=str(multi30k), text=str(text)
    )
    context = Context(scale, multi30k, (0, 1, 2), settings.data())
    found, accepted, rows = [], [], TRAINED[name].rows
    for row in rows:
        for words in TRAINED[name].commands(row, context):
            for begins in (x for x in words if x.startswith("--init_from=")):
                Path(begins.partition("=")[2]).mkdir(exist_ok=True)
            settings_class = import_module(f"experiments.{words[0]}.settings").Settings
            status = command_line.run(
                words, settings_class, lambda chosen, _: accepted.append(chosen) or 0, doc=""
            )
            assert status == 0, (row, words)
        found.append(accepted[-1])
    if words[0] != "translate":
        assert len(set(found)) == 1, "one run for all rows"
    else:
        paper = TRAINED[name].paper(report.read_published([name])[name])
        numbers = {(chosen, paper.get(row, row)) for row, chosen in zip(rows, found, strict=True)}
        assert len(set(found)) == len(numbers), "two rows of the paper are the same model here"
    assert all(chosen.seeds == (0, 1, 2) for chosen in found)


def test_each_run_has_a_folder_that_a_file_system_takes():
    trainings = [one for table in TRAINED.values() for one in table.trainings.values()]
    runs = {str(run): run.place(Path()) for one in trainings for run in one.runs.values()}
    assert max(len(part.encode()) for place in runs.values() for part in place.parts) <= 220
    assert len(set(runs.values())) == len(runs)


def test_at_the_papers_scale_a_row_has_the_papers_text_and_windows():
    table = TRAINED["luong4"]
    context = Context("paper", Path(), (0,), {"wmt14": ["--data_dir=here"]})
    ((*words,),) = table.commands("local-m, general", context)
    assert "--tfds_name=wmt14_translate/de-en" in words and "--direction=en-de" in words
    assert "--set=luong.half_width=10" in words and words[-1] == "--data_dir=here"
    (words,) = table.commands("global, dot", context)
    assert "--set=luong.window=global" in words, "the preset has a local window"
    (words,) = TRAINED["bahdanau1"].commands("RNNsearch-50", context)
    assert "--tfds_name=wmt14_translate/fr-en" in words and "--max_length=50" in words


def test_a_duplication_is_read_by_what_it_was_trained_and_evaluated_with():
    kinds = [("shared", "lsh-1"), ("shared", "lsh-1: c=1 B=1 mask union"), ("lsh-1", "shared")]
    rows = [
        make_line(seed, {"accuracy": (index + seed / 10) / 4}, attention=trained)
        | {"evaluated": evaluated}
        for seed in (0, 1)
        for index, (trained, evaluated) in enumerate(kinds)
    ]
    read, there = TRAINED["reformer2"].read, {"revision": "abc"}
    assert read("Full, LSH-1", rows) == {
        0: ({"accuracy": 0.0}, there),
        1: ({"accuracy": pytest.approx(2.5)}, there),
    }
    assert read("LSH-1, full", rows)[0] == ({"accuracy": 50.0}, there)


def test_a_language_model_is_read_by_its_task_and_what_it_was_trained_and_evaluated_with():
    rows = [
        make_line(1, {"bits per byte": bits}, task=task, length=length, model="lsh-2")
        | {"evaluated": evaluated}
        for task, evaluated, length, bits in (
            ("text", "lsh-4", 2048, 1.0),
            ("text", "", 512, 2.0),
            ("text", "", 2048, 3.0),
            ("copy", "", 2048, 0.5),
        )
    ]
    table = TRAINED["reformer4"]
    assert table.read("4 rounds", rows) == {}
    scores = table.read("2 rounds", rows)
    assert scores == {1: ({"bits per byte": 3.0}, {"revision": "abc"})}
    assert table.format_row([{"bits per byte": 3.0}]) == "3.00"
