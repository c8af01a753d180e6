"""The commands of trained rows, and which of a run's numbers are a row's."""

from pathlib import Path

import pytest

from attnlab.runs import command_line
from experiments.duplication.settings import Settings as DuplicationSettings
from experiments.finetune.settings import Settings as FinetuneSettings
from experiments.language_model.settings import Settings as LanguageModelSettings
from experiments.long_range.settings import Settings as LongRangeSettings
from experiments.pretrain.settings import Settings as PretrainSettings
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, report
from experiments.tables.runs import Context
from experiments.tables.settings import LANGUAGES, MULTI30K
from experiments.tables.trained import TrainedTable
from experiments.translate.settings import Settings as TranslateSettings
from tests.experiments import tiny

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


SETTINGS = {
    "translate": TranslateSettings,
    "duplication": DuplicationSettings,
    "language_model": LanguageModelSettings,
    "long_range": LongRangeSettings,
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
}


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
            status = command_line.run(
                words, SETTINGS[words[0]], lambda chosen, _: accepted.append(chosen) or 0, doc=""
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


def test_text_that_no_table_reads_is_refused(multi30k):
    flags = ("--scale=cpu", "--only=luong6", f"--multi30k={multi30k}")
    status, _, err = tiny.run(experiment, *flags)
    assert status == 2 and "none of the tables needs it" in err


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
        {
            "cell": {"axes": {"attention": trained}, "seed": seed},
            "evaluated": evaluated,
            "scores": {"accuracy": (index + seed / 10) / 4},
            "environment": seed,
        }
        for seed in (0, 1)
        for index, (trained, evaluated) in enumerate(kinds)
    ]
    read = TRAINED["reformer2"].read
    assert read("Full, LSH-1", rows) == {
        0: ({"accuracy": 0.0}, 0),
        1: ({"accuracy": pytest.approx(2.5)}, 1),
    }
    assert read("LSH-1, full", rows)[0] == ({"accuracy": 50.0}, 0)


def test_a_classification_is_read_by_its_task_and_mechanism():
    rows = [
        {
            "cell": {"axes": {"task": task, "attention": name}, "seed": 3},
            "scores": {"accuracy": share},
            "environment": name,
        }
        for task, name, share in (("text", "exact", 0.5), ("listops", "exact", 0.25))
    ]
    table = TRAINED["lra1"]
    assert table.read("Transformer", rows) == {3: ({"accuracy": 25.0}, "exact")}
    assert table.read("Reformer", rows) == {}
    run = table.trainings["Reformer"].runs["gpu"]
    assert run.flags[-1] == "--mechanisms=exact,window-16,lsh-2"


def test_a_language_model_is_read_by_what_it_was_trained_and_evaluated_with():
    rows = [
        {
            "cell": {"axes": {"task": task, "length": length, "model": "lsh-2"}, "seed": 1},
            "evaluated": evaluated,
            "scores": {"bits per byte": bits},
            "environment": "here",
        }
        for task, evaluated, length, bits in (
            ("text", "lsh-4", 2048, 1.0),
            ("text", "", 512, 2.0),
            ("text", "", 2048, 3.0),
            ("copy", "", 2048, 0.5),
        )
    ]
    table = TRAINED["reformer4"]
    scores = table.read("2 rounds", rows)
    assert scores == {1: ({"bits per byte": 3.0}, "here")}
    assert (
        table.paper(report.read_published(["reformer4"])["reformer4"])["full attention"] == "level"
    )
    assert table.format_row([{"bits per byte": 3.0}]) == "3.00"
