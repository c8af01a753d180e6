"""`check` as a program: its verdicts, its status, and what it says of a broken contract."""

import json
import re
from pathlib import Path

import jax
import pytest

import experiments
from attnlab import testing
from attnlab.mechanisms import own
from attnlab.runs import provenance
from attnlab.runs.report import group
from experiments.check import __main__ as check
from experiments.check import settings
from experiments.check.settings import PUBLIC, Settings

FILE = """
import jax.numpy as jnp

def ahead(q, k, v, *, mask=None):
    return q.sum(-1, keepdims=True) * v[:, -1:]
"""


@pytest.fixture(autouse=True)
def no_cost(monkeypatch):
    monkeypatch.setattr(check, "cost", lambda name: f"what {name} takes")


def run(tmp_path, *words, contracts="causal,second_derivative"):
    folder = f"--output_dir={tmp_path / 'results'}"
    return check.main(["check", *words, f"--contracts={contracts}", folder])


def test_status_and_report_of_what_is_broken(tmp_path, capsys, monkeypatch):
    mine = tmp_path / "mine.py"
    mine.write_text(FILE)
    assert run(tmp_path, f"{mine}:ahead", "exact:dense", "exact:dense") == 1
    (folder,) = (tmp_path / "results").glob("check-*")
    report = (folder / "report.md").read_text()
    assert re.search(r"ahead keeps 1 of 2 contracts, breaks causal; .* keeps 2 of 2", report)
    assert re.search(r"context\[0, 0, 0, 0\] is .*, not .* after positions 1, … changed", report)
    (line,) = re.findall(r"^ +(from attnlab import testing; .*)$", report, re.MULTILINE)
    exec(line)  # noqa: S102 - as a user would
    assert "after positions 1, … changed" in capsys.readouterr().out.splitlines()[-1]
    pictures = re.findall(r"^!\[Pairs that are seen by .*\]\((.*)\)$", report, re.MULTILINE)
    assert len(pictures) == 2 and all((folder / name).exists() for name in pictures)
    assert check.main(["check", f"--resume={folder}", "--json"]) == 1  # nothing is left to do
    verdicts = [outcome["verdict"] for outcome in json.loads(capsys.readouterr().out)]
    assert verdicts == ["no", "yes", "-", "yes", "yes", "-"]

    monkeypatch.setattr(own, "digests", lambda text: {f"{mine}:ahead": "another"})
    assert check.main(["check", f"--resume={folder}"]) == 2
    assert "as its file was before it was changed" in capsys.readouterr().err


MODEL = """
import numpy as np

def logits(tokens):
    return np.cumsum(np.eye(7)[tokens[:, ::-1]], 1)[:, ::-1]

def initial(batch, length):
    return np.zeros((batch, 1, 7))

def step(cache, tokens):
    logits = cache + np.cumsum(np.eye(7)[tokens], 1)
    return logits, logits[:, -1:]
"""


def test_a_model_is_held_to_its_own_contracts(tmp_path):
    mine = tmp_path / "model.py"
    mine.write_text(MODEL)
    flags = ["--vocab_size=7", f"--decode={mine}:step", f"--initial={mine}:initial"]
    assert run(tmp_path, f"{mine}:logits", *flags, contracts="past,cache,causal,determinism") == 1
    (folder,) = (tmp_path / "results").glob("check-*")
    report = (folder / "report.md").read_text()
    assert "keeps 1 of 3 contracts, breaks past, cache**" in report
    assert "two calls differ by 0 at most" in report
    assert f"decode='{mine}:step', initial='{mine}:initial'" in report
    assert len(list(folder.glob("pairs-*.svg"))) == 1


def test_what_is_public_is_asked_twice_and_noted(tmp_path, monkeypatch):
    mine = tmp_path / "model.py"
    mine.write_text(MODEL.replace("7", "32"))
    about = {"title": "A sum", "package": "numpy", "model": True, "call": f"{mine}:logits"}
    absent = {"title": "Absent", "package": "no-such", "call": "no.such:attention"}
    monkeypatch.setattr(settings, "PUBLIC", [{**about, "note": "It is meant so."}, absent])
    monkeypatch.setattr(check, "PUBLIC", settings.PUBLIC)
    assert run(tmp_path, "--public", contracts="past,determinism") == 1
    (folder,) = (tmp_path / "results").glob("check-*")
    report = (folder / "report.md").read_text()
    assert re.search(r"A sum .*\| numpy [0-9.]+ \| +no \| +yes \|", report)
    assert "; with other tokens: no\n" in report and "\nIt is meant so.\n" in report
    assert "Absent" not in report


KEPT = Path(experiments.__file__).parent / "results" / "audit" / "results.jsonl"
AUDIT = group(map(json.loads, KEPT.read_text().splitlines()), lambda row: row["mechanism"])


def is_here(about):
    """Whether it is installed in the version that was audited; a wheel's "+cpu" is no other."""
    package = about["package"]
    kept = AUDIT[about["call"]][0]["environment"]["versions"][package]
    here = provenance.versions([*PACKAGES])[package]
    return kept.partition("+")[0] == here.partition("+")[0]


PACKAGES = {about["package"] for about in PUBLIC}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of others, who may broadcast too
@pytest.mark.parametrize("call", [about["call"] for about in PUBLIC if is_here(about)])
def test_what_is_installed_keeps_what_the_audit_says(call):
    with jax.numpy_rank_promotion("allow"):
        model = Settings(mechanisms=(call,), public=True).make_model(call)
        outcomes = [testing.outcome(model, row["contract"]) for row in AUDIT[call]]
    assert [x.verdict for x in outcomes] == [row["verdict"] for row in AUDIT[call]]


def test_what_was_not_asked_is_no_failure(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    assert run(tmp_path, f"{tmp_path / 'mine.py'}:ahead", contracts="second_derivative") == 0


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "give what to check"),
        (["nothing"], "nothing"),
        (["exact+lsh-2"], "cannot be checked"),
        (["no.py:Such"], "no.py"),
        (["exact", "--contracts=speed"], "speed"),
        (["exact", "--seed", "x"], "flag --seed=x: "),
        (["torch.nn.functional:no_such"], "there are"),
        (["exact", "--length=9"], "--length=9: needs --vocab_size"),
        (["exact", "--public"], "--public has a list of its own; leave exact out"),
        (["numpy.linalg:norm", "--vocab_size=5"], "logits [B, T, vocab_size]"),
        (["numpy.linalg:norm"], "a function of tokens wants vocab_size, --vocab_size=256"),
    ],
)
def test_what_is_wrong_is_one_line(words, said, tmp_path, capsys):
    assert check.main(["check", *words, f"--output_dir={tmp_path / 'results'}"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error and not (tmp_path / "results").exists()


def test_each_mechanism_has_a_figure_of_its_own():
    assert len({check._file(f"mine.py:decay(rate={rate})") for rate in (".5", "5", "-5")}) == 3
