"""The kept list of mutants can be run, and its runner tells a kill from a survivor."""

import ast
import shlex
import subprocess

from tests import mutants
from tests.mutants import ROOT

MUTANTS = mutants.read_mutants(ROOT)


def test_each_mutant_changes_one_place_of_a_file_and_has_tests():
    texts = {mutant["file"]: (ROOT / mutant["file"]).read_text() for mutant in MUTANTS}
    changed, wrong = dict(texts), []
    for mutant in MUTANTS:
        file, old, new = mutant["file"], mutant["old"], mutant["new"]
        changed[file] = changed[file].replace(old, new)
        words = shlex.split(mutant["test"])
        tests = [word.partition("::")[0] for word in words if word.startswith("tests/")]
        there = bool(tests) and all((ROOT / test).is_file() for test in tests)
        if texts[file].count(old) != 1 or old == new or "\n" in old + new or not there:
            wrong.append(mutants.describe(mutant))
    assert not wrong
    for text in changed.values():
        ast.parse(text)


def test_each_folder_with_code_has_a_mutant():
    files = [path for top in ("attnlab", "experiments") for path in (ROOT / top).rglob("*.py")]
    folders = {path.parent for path in files if path.name != "__init__.py"}
    named = {(ROOT / mutant["file"]).parent for mutant in MUTANTS}
    assert not folders - named


def test_the_runner_tells_what_is_killed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tests take no time then
    mutant = '[[mutant]]\nfile = "half.py"\nold = "x // 2"\ntest = "test_half.py"\nnew = '
    news = ('"x - 2"', '"x // 3"', '"x - 3 + 1"\nsurvives = true', '"y("')
    made = {
        "half.py": "def half(x):\n    return x // 2\n",
        "test_half.py": "from half import half\n\ndef test_half():\n    assert half(4) == 2\n",
        "tests/mutants.toml": "\n".join(mutant + new for new in news),
    }
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert mutants.run(tmp_path, ["half"], workers=1) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:10].strip() for line in lines[:4]] == [
        mutants.SURVIVED,
        mutants.KILLED,
        mutants.KNOWN,
        mutants.ERROR,
    ]
    assert "   1 of   4  ." in lines
    assert mutants.run(tmp_path, ["other"], workers=1) == 0
