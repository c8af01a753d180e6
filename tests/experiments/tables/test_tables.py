"""The tables at scale "exact": every cell against the paper and against closed forms."""

import csv

import pytest

from attnlab.runs.command_line import command
from attnlab.runs.errors import Invalid
from attnlab.runs.published import read
from experiments.tables import __main__ as experiment
from experiments.tables import growth, mapping, report, stacks, verdicts
from experiments.tables.exact import ExactTable
from experiments.tables.parameters import Count, vocabularies
from experiments.tables.settings import Settings
from tests.daily import daily
from tests.experiments import tiny

TABLES = {name: one for name, one in mapping.all_tables().items() if isinstance(one, ExactTable)}
CLOSED_FORMS = read(report.PUBLISHED / "param_counts.csv")


def test_every_published_number_of_parameters_has_a_cell():
    papers = report.published(list(TABLES))
    for name, mapped in TABLES.items():
        assert mapped.cells.keys() <= papers[name].printed.keys()
        if mapped.column == "params_millions":
            printed = {row for row, x in papers[name].printed.items() if mapped.column in x}
            assert mapped.cells.keys() == printed


@pytest.mark.parametrize("name", ["vaswani1_complexity", "vaswani1_sequential"])
def test_exponents_are_those_of_the_papers_words(name):
    mapped, paper = TABLES[name], report.published([name])[name]
    for row, ours in mapped.cells.items():
        words = paper.printed[row][mapped.column].removeprefix("O(").removesuffix(")")
        factors = (factor.partition("^") for factor in words.split(" * "))
        wanted = {size: float(power or 1) for size, _, power in factors}
        assert dict(ours.exponents) == ({"n": 0} if words == "1" else wanted)


def test_path_lengths_are_those_of_the_papers_words():
    name = "vaswani1_path"
    mapped, paper = TABLES[name], report.published([name])[name]
    words = {
        "O(1)": {"n": 0},
        "O(n)": {"n": 1},
        "O(log_k(n))": {"log n": 1, "log k": -1},
        "O(n/r)": {"n": 1, "r": -1},
    }
    for row, ours in mapped.cells.items():
        assert dict(ours.exponents) == words[paper.printed[row][mapped.column]]


def test_an_exponent_that_is_less_says_so():
    assert verdicts.of_exponents({"n": 2, "R": 1}, {"n": 2.1, "R": 0.9}) == verdicts.EXACT
    assert verdicts.of_exponents({"n": 2, "R": 1}, {"n": 1, "R": 1}) == "not exact: less"
    assert verdicts.of_exponents({"n": 2, "R": 1}, {"n": 1, "R": 1.3}) == "not exact"


SLOW = ("vaswani1_path", "reformer1_memory", "reformer3_time", "reformer3_memory")
FAST = [name for name in TABLES if name not in SLOW]


@pytest.mark.slow
def test_the_exact_tables(tmp_path):
    """No count is another than the paper's but those of the big Transformer and BERT."""
    flags = [f"--only={','.join(FAST)}", f"--output_dir={tmp_path}"]
    status, out, err = tiny.run(experiment, *flags)
    assert (status, err) == (0, "")
    said = {line.split("]")[0]: line for line in out.splitlines() if line.startswith("| [")}
    assert "the paper" in said["| [bert_sizes"] and "1 exact, 1 not exact" in said["| [bert_sizes"]
    assert "a closed form of ours" in said["| [bert_parameters"]
    (folder,) = tmp_path.iterdir()
    lines = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    others = {line["row"]: line["verdict"] for line in lines if line["verdict"] != verdicts.EXACT}
    assert others == {
        "LSH Attention": "not exact: less",
        "big": verdicts.NOT_EXACT,
        "BERT_LARGE": verdicts.NOT_EXACT,
    }
    assert len(lines) == 75
    text = (folder / "report.md").read_text()
    assert "gives 10 of 11 numbers of the paper: 41,004 to 41,208 ids." in text
    assert "One vocabulary gives all numbers of the paper: 37,007 ids." in text
    # Nothing is left to do.
    assert "0 of 75 cells" in tiny.run(experiment, f"--resume={folder}")[1]


@pytest.mark.parametrize("row", daily(TABLES["vaswani1_path"].rows, "Convolutional"))
def test_path_lengths(row):
    ours = TABLES["vaswani1_path"].cells[row]
    assert ours.measure() == dict(ours.exponents)


@pytest.mark.parametrize("row", daily(TABLES["vaswani2_cost"].rows, "Transformer (base)"))
def test_the_cost_of_a_training_is_estimated_as_the_paper_does_and_counted(row):
    """Counted: 6 operations a parameter and token, and no less than half of that."""
    ours = TABLES["vaswani2_cost"].cells[row]
    values = ours.measure()
    paper = report.published(["vaswani2_cost"])["vaswani2_cost"].printed[row]["FLOPs_EN_DE"]
    assert ours.verdict(paper, values) == verdicts.EXACT
    assert ours.verdict("1e18", values) == verdicts.NOT_EXACT
    parameters = {"Transformer (base)": 63e6, "Transformer (big)": 214e6}[row]
    whole = 6 * parameters * 25_000 * ours.steps
    assert 0.5 * whole < values["counted"] < 1.5 * whole
    assert "of it" in ours.written(values)


@pytest.mark.slow
def test_memory_of_hashing_grows_with_the_length_and_not_with_its_square(monkeypatch):
    monkeypatch.setitem(growth._LONG, "n", 2**12)
    for layer, exponent in (("self_attention", 2), ("lsh", 1)):
        ours = growth.Growth(layer, "memory", (("n", exponent),))
        assert ours.measure()["n"] == pytest.approx(exponent, abs=0.15)


@pytest.mark.parametrize("row", daily(TABLES["reformer3_time"].rows, "Reversible Transformer"))
def test_operations_of_whole_models_grow_as_printed(row):
    ours = TABLES["reformer3_time"].cells[row]
    assert ours.verdict("", ours.measure()) == verdicts.EXACT


@pytest.mark.slow
def test_reversible_layers_keep_nothing_and_others_do(monkeypatch):
    """At short lengths, where the two are further apart than parameters weigh."""
    monkeypatch.setitem(stacks._LONG, "l", 256)
    for model, exponent in (("exact", 1), ("reversible-exact", 0)):
        ours = stacks.StackGrowth(model, "memory", (("N", exponent),))
        assert ours.measure()["N"] == pytest.approx(exponent, abs=0.15)


@pytest.mark.parametrize(
    ("row", "table", "key"),
    [
        ("base", "vaswani3_parameters", "Vaswani base"),
        ("B1", "vaswani3_parameters", "Vaswani B1 d_k=16"),
        ("C5", "vaswani3_parameters", "Vaswani C5 d_model=1024"),
        ("big", "vaswani3_parameters", "Vaswani big"),
        ("None-Input", "britz5_parameters", "Britz None-Input"),
        ("BERT large cased", "bert_parameters", "BERT large cased"),
    ],
)
def test_counts_are_the_closed_forms(row, table, key):
    count = TABLES[table].cells[row]
    for column in ("exact_V37000", "exact_V41100"):
        if column not in CLOSED_FORMS.cells[key]:
            continue
        ids = count.vocab_size if "Vaswani" not in key else int(column.removeprefix("exact_V"))
        assert Count(count.model, count.fields, ids).number() == CLOSED_FORMS.cells[key][column]


def test_vocabularies_are_those_that_round_to_the_papers_number():
    count = TABLES["vaswani3_parameters"].cells["C1"]
    found = vocabularies(count, "36")

    def gives(vocab_size):
        made = Count(count.model, count.fields, vocab_size).number()
        return verdicts.of_count("36", made) == verdicts.EXACT

    inside, outside = (found[0], found[-1]), (found.start - 1, found.stop)
    assert all(map(gives, inside)) and not any(map(gives, outside))


def test_the_verdict_on_a_count():
    assert verdicts.of_count("66.32", 66_324_623) == verdicts.EXACT
    assert verdicts.of_count("66.33", 66_324_623) == verdicts.NOT_EXACT
    assert verdicts.of_count("80401000", 80_401_001) == verdicts.NOT_EXACT


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--only=luong9", "--only=luong9: no 'luong9'; valid: amos_listops, "),
        ("--only=britz1_parameters,britz1_parameters", ": give each once"),
        ("--part=4/4", "--part=4/4: give I/N, such as 0/8 to 7/8"),
        ("--claims --only=luong1", "--claims: nothing is run; leave out --only"),
        ("--scale=tpu", "--scale=tpu: no 'tpu'; valid: exact, cpu, gpu"),
    ],
)
def test_a_bad_flag_is_one_line(flag, message, tmp_path):
    status, _, err = tiny.run(experiment, *flag.split(), f"--output_dir={tmp_path / 'out'}")
    assert status == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_only_names_the_tables_of_a_run():
    settings = Settings(only=("britz2_parameters", "bahdanau_parameters"))
    assert [str(cell) for cell in settings.cells()] == [
        "britz2_parameters, LSTM", "britz2_parameters, GRU", "britz2_parameters, Vanilla-Dec",
        "bahdanau_parameters, Bahdanau RNNsearch",
    ]  # fmt: skip


def test_the_jobs_of_an_array_have_each_cell_once(monkeypatch):
    whole = Settings().cells()
    parts = [Settings(part=f"{i}/4").cells() for i in range(4)]
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
    named = command("tables", Settings, Settings(part="1/2").as_json())
    assert named == "launch/local tables --part=1/2"
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "4")
    assert "--part=2/4" in command("tables", Settings, Settings(part="2/4").as_json())
    monkeypatch.delenv("SLURM_ARRAY_TASK_MIN")
    with pytest.raises(Invalid, match="the job array says no SLURM_ARRAY_TASK_MIN; give --part"):
        Settings.of_place({})


def test_a_part_goes_on_in_the_array_that_began_it(tmp_path, monkeypatch):
    flags = "--only=bert_sizes,bahdanau_parameters", f"--run_dir={tmp_path}/0"
    array = {"ID": 0, "MIN": 0, "MAX": 1, "STEP": 1, "COUNT": 2}
    for name, x in array.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(x))
    assert tiny.run(experiment, *flags)[0] == 0 and tiny.run(experiment, *flags)[0] == 0
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "2")
    status, _, err = tiny.run(experiment, *flags)
    assert status == 2 and "this job has --part=0/3, and the run 0/2; submit the job array" in err


def test_a_dry_run_names_every_row_with_the_command_of_its_run_and_makes_nothing(tmp_path):
    folder = tmp_path / "out"
    flags = "--scale=paper", "--only=luong4,luong4_perplexity", "--seeds=3", "--dry_run"
    status, out, err = tiny.run(experiment, *flags, f"--output_dir={folder}")
    assert (status, err) == (0, "") and not folder.exists()
    runs = [run.splitlines() for run in out.strip().split("\n\n")[:-1]]
    rows = mapping.all_tables()["luong4"].rows
    assert [rows for rows, _ in runs] == [f"luong4, {x}; luong4_perplexity, {x}" for x in rows]
    dot = "--set=luong.score=dot --set=luong.half_width=10 --seeds=3"
    (of_dot,) = (command for rows, command in runs if "local-p, dot" in rows)
    assert of_dot.startswith("    launch/local translate --preset=paper") and of_dot.endswith(dot)
    assert out.splitlines()[-2] == "10 runs for 20 of 20 rows"
