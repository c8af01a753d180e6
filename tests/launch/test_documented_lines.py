"""Each command line of the pages and of --help is one that its launcher and its experiment take."""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import textwrap

import pytest

from experiments.tables.settings import MULTI30K
from tests.several import ROOT, run_python

PAGES = [
    *("[!C]*.md", "experiments/README.md", "docs/*.md", "docs/[!_]*/*.md"),
    *("launch/*.py", "experiments/*/__init__.py"),
]
FENCED = re.compile(r"^```(?:bash|console|shell|text)?\n(.*?)^```", re.M | re.S)
START = r"(?:^ {4}(?:\$ )?|`|^ {4}for i in 0 1; do )"
END = r"(?:\s{2,}#.*| & done.*|`|$)"
LINE = re.compile(rf"{START}((?:launch/|python -m experiments\.)\w+(?: [^`\n]*?)?){END}", re.M)
# Forms, and what is not an experiment's.
OTHER = re.compile(r"NAME|{|launch/local (docs|test)|launch/\w+$|--help")


def lines(*pages: str) -> list[str]:
    found_pages = [path for page in pages for path in sorted(ROOT.glob(page))]
    # The lines of that page are wrong on purpose, and tests/experiments run them.
    texts = [path.read_text() for path in found_pages if path.name != "refused_commands.md"]
    indented = [FENCED.sub(lambda block: textwrap.indent(block[1], " " * 4), x) for x in texts]
    joined = [re.sub(r"\\+\n\s*", "", text) for text in indented]
    found = dict.fromkeys(line for text in joined for line in LINE.findall(text))
    return [line for line in found if not OTHER.search(line)]


def experiment_and_flags(line: str) -> tuple[str, list[str]]:
    """The words from NAME on, as a launcher has them checked."""
    words = shlex.split(line.replace("python -m experiments.", "launch/local ").replace("$i", "0"))
    name = next(i for i, word in enumerate(words) if i and not word.startswith("-"))
    flags = [word for word in words[name + 1 :] if not word.startswith("--output_dir=gs://")]
    resumed = any(word.startswith("--resume=") for word in flags)
    return words[name], [*flags, "--check=words" if resumed else "--check=flags"]


def launched(line: str) -> list[str]:
    """The words with which the launcher reads the line, and starts nothing."""
    program, *words = shlex.split(line)
    if program == "launch/local":
        return [program, *words, "--help"]
    return [program, "--dry_run", "--allow_dirty", f"--python={shutil.which('true')}", *words]


@pytest.mark.parametrize("line", lines(*PAGES))
def test_launcher_and_experiment_take(line, tmp_path, monkeypatch, capsys):
    multi30k = tmp_path / "multi30k"
    multi30k.mkdir()
    files = [multi30k / f"{part}.{x}.gz" for part in MULTI30K for x in ("de", "en")]
    for file in [*files, tmp_path / "train.de", tmp_path / "train.en"]:
        file.touch()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")  # as in the clone
    line = line.replace("/data/multi30k", str(multi30k))
    monkeypatch.chdir(tmp_path)
    name, flags = experiment_and_flags(line)
    if line.startswith("launch/slurm"):  # whose nodes see the files
        flags.append("--check=files")
    main = importlib.import_module(f"experiments.{name}.__main__").main
    assert (main([name, *flags]), capsys.readouterr().err) == (0, "")
    if line.startswith("launch/") and not line.startswith(f"launch/local {name}"):
        program, *words = launched(line)
        done = subprocess.run([ROOT / program, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


NO_DEVICE = """
import importlib, json, sys
for name, flags in json.loads(sys.argv[1]):
    status = importlib.import_module(f"experiments.{name}.__main__").main([name, *flags])
    assert status == 0, (name, flags)
"""


@pytest.mark.slow
def test_settings_ask_for_no_device():
    """Of several processes none may, before it has joined the others."""
    traced = "launch/local translate --models=transformer --set=transformer.width=8"
    asked = json.dumps([experiment_and_flags(line) for line in (traced, *lines(*PAGES))])
    run_python("-c", NO_DEVICE, asked, env=os.environ | {"JAX_PLATFORMS": "abacus"})


def test_lines_of_every_place_are_found():
    assert {line.split()[0] for line in lines(*PAGES)} >= {
        f"launch/{place}" for place in ("local", "slurm", "tpu_vm", "gke", "sky")
    }
    assert len(lines("README.md")) >= 4 and len(lines("docs/experiments/*.md")) > 40
