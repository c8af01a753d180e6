"""What the README shows runs as it stands, and what the pages point to is there."""

import os
import re

import pytest

import attnlab
from tests.several import ROOT, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
BLOCKS = PYTHON.findall(README)


def every_mechanism(program, printed):
    lines = printed.splitlines()
    assert [line.split(": (2, 1000, 64), ")[0] for line in lines] == list(program["mechanisms"])
    assert len({line.split(", ")[-1] for line in lines}) == 3  # dot and window have the same


def inside_flax(program, printed):
    assert program["y"].shape == (2, 1000, 64) and not printed


CHECKS = (every_mechanism, inside_flax)
PAGES = [ROOT / "README.md", ROOT / "experiments" / "README.md"]
PAGES += sorted(ROOT.glob("docs/experiments/*.md")) + sorted(ROOT.glob("docs/mechanisms/*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_code_runs_by_itself(check, capsys):
    assert len(BLOCKS) == len(CHECKS) + 1
    program: dict = {}
    exec(compile(BLOCKS[CHECKS.index(check)], "README.md", "exec"), program)
    check(program, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [8, 1])
def test_the_code_over_devices_runs_on_eight_that_are_there_or_made(devices):
    code = BLOCKS[-1] + "print(y.shape, len(y.sharding.device_set))"
    environment = dict(os.environ, JAX_NUM_CPU_DEVICES=str(devices), PYTHONPATH=str(ROOT))
    assert run_python("-c", code, env=environment) == "(8, 1024, 64) 8\n"


def test_the_experiment_of_their_readme_runs_and_is_resumed(tmp_path):
    [code] = PYTHON.findall((ROOT / "experiments" / "README.md").read_text(encoding="utf-8"))
    program: dict = {"__name__": "spread"}
    exec(compile(code, "experiments/README.md", "exec"), program)
    assert program["main"](["spread", "--widths=8,32", f"--output_dir={tmp_path}"]) == 0
    [folder] = tmp_path.iterdir()
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) +\| +0\.\d{3} \|$", report, re.MULTILINE) == ["8", "32"]
    (folder / "report.md").unlink()
    assert program["main"](["spread", f"--resume={folder}"]) == 0
    assert (folder / "report.md").read_text(encoding="utf-8") == report


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    missing = [link for link in links if not page.parent.joinpath(link).exists()]
    assert not missing
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_the_picture_is_what_its_command_draws():
    [(command, path)] = re.findall(r"^`(attnlab\.draw\(.*\))` .*\n!.*\((.*)\)$", README, re.M)
    drawn = eval(command, {"attnlab": attnlab, "masks": attnlab.masks, "routes": attnlab.routes})
    drawn, kept = (
        re.findall(r"base64,([^\"]*)", svg)
        for svg in (drawn._repr_svg_(), (ROOT / path).read_text(encoding="utf-8"))
    )
    assert len(drawn) == 3 and drawn == kept


def test_the_readme_is_read_in_one_sitting():
    lines = README.splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 100
