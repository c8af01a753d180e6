"""Each command line of the READMEs and of --help is one that the experiment takes."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from experiments.tables.settings import MULTI30K
from tests.launch.site import ROOT

PAGES = [
    "README.md",
    "experiments/README.md",
    "docs/guides/*.md",
    "launch/*.py",
    "experiments/*/__init__.py",
]
START = r"(?:^ {4}|^(?=launch/\w+ (?:-|\w+ -))|`|^(?: {4})?for i in 0 1; do )"
END = r"(?:\s{2,}#.*| & done.*|`|$)"
LINE = re.compile(rf"{START}((?:launch/|python -m experiments\.)\w+(?: [^`\n]*?)?){END}", re.M)
# Forms, and what is not an experiment's.
OTHER = re.compile(r"NAME|{|launch/local (test|docs|--)|launch/\w+$|--help")


def lines(*pages: str) -> list[str]:
    texts = [path.read_text() for page in pages for path in sorted(ROOT.glob(page))]
    joined = [re.sub(r"\\+\n\s*", "", text) for text in texts]
    found = dict.fromkeys(line for text in joined for line in LINE.findall(text))
    return [line for line in found if not OTHER.search(line)]


def experiment_and_flags(line: str) -> tuple[str, list[str]]:
    """The words from NAME on, as a launcher has them checked."""
    words = shlex.split(line.replace("python -m experiments.", "launch/local ").replace("$i", "0"))
    name = next(i for i, word in enumerate(words) if i and not word.startswith("-"))
    flags = [word for word in words[name + 1 :] if not word.startswith("--output_dir=gs://")]
    resumed = any(word.startswith("--resume=") for word in flags)
    return words[name], [*flags, "--check=words" if resumed else "--check=flags"]


@pytest.mark.parametrize("line", lines(*PAGES))
def test_the_experiment_takes_the_flags_of(line, capsys):
    name, flags = experiment_and_flags(line)
    main = importlib.import_module(f"experiments.{name}.__main__").main
    assert (main([name, *flags]), capsys.readouterr().err) == (0, "")


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
    command = [sys.executable, "-c", NO_DEVICE, asked]
    environment = {**os.environ, "JAX_PLATFORMS": "abacus"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def of_places() -> list[str]:
    return [one for one in lines(*PAGES) if not one.startswith(("launch/local", "python"))]


def test_lines_of_every_place_are_found():
    assert {line.split()[0] for line in of_places()} == {
        f"launch/{place}" for place in ("slurm", "tpu_vm", "gke", "sky")
    }
    assert len(lines("README.md")) >= 5 and len(lines("experiments/README.md")) > 40


@pytest.mark.slow
@pytest.mark.parametrize("line", of_places())
def test_the_launcher_takes(line, tmp_path):
    multi30k = tmp_path / "multi30k"
    multi30k.mkdir()
    files = [multi30k / f"{part}.{x}.gz" for part in MULTI30K for x in ("de", "en")]
    for file in [*files, tmp_path / "train.de", tmp_path / "train.en"]:
        file.touch()
    line = line.replace("/data/multi30k", str(multi30k)).replace("BUCKET", "bucket")
    program, *words = shlex.split(line)
    options = ["--dry_run", "--allow_dirty", f"--python={sys.executable}"]
    command = [ROOT / program, *options, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
