"""The comparison with peers: fair on small inputs, and its report says what came out."""

import dataclasses
import functools
import importlib.util
import json
import subprocess
import sys

import pytest

from attnlab.bench.case import PASSES, Case
from experiments.compare_peers import pairs as peers
from experiments.compare_peers import report as peers_report
from experiments.compare_peers import rows as peers_rows
from experiments.compare_peers import run as peers_run
from experiments.compare_peers.pairs import Outcome, Pair, Side

# In a process of its own: peers warn at import, which here is an error, and one case needs x64.
PROBE = """
import json, sys
import numpy as np
import jax
jax.config.update("jax_platforms", "cpu")
from experiments.compare_peers import sides as peers_sides
from attnlab.bench.case import Case
from experiments.compare_peers.pairs import Side

found = []
for sides in json.loads(sys.argv[1]):
    values = []
    for program, case in sides:
        built = peers_sides.build(Side(program, Case(**case)), given_buckets=True)
        values.append(built.values(built.call()))
    found.append([float(np.max(np.abs(x - y)) / np.max(np.abs(y))) for x, y in zip(*values)])
print(json.dumps(found))
"""
SIZES = {
    "additive": dict(length=37, num_heads=1, head_dim=16),
    "multi_head": dict(length=37, num_heads=2, head_dim=16),
    "lsh": dict(length=128, num_heads=2, head_dim=16, chunk_size=16),
}
CHECKED = {
    (pair.peer.program, pair.passes): [
        (side.program, dataclasses.asdict(side.case) | SIZES[side.case.mechanism])
        for side in pair.checked
    ]
    for pair in peers_rows.pairs(list(peers_rows.ROWS))
    if pair.checked
}


def installed(program: str) -> bool:
    package = peers.PACKAGES.get(program)
    return package is None or importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def differences():
    """(peer, passes) -> the relative differences of the outputs or of each gradient."""
    chosen = {key: sides for key, sides in CHECKED.items() if installed(key[0])}
    command = [sys.executable, "-c", PROBE, json.dumps(list(chosen.values()))]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return dict(zip(chosen, json.loads(run.stdout.splitlines()[-1]), strict=True))


def test_every_peer_is_checked():
    names = {peers.KERAS, peers.FLAX, peers.JAX_NN, peers.SDPA}
    names |= {peers.HUGGING_FACE, peers.REFORMER_PYTORCH}
    assert CHECKED.keys() == {(name, passes) for name in names for passes in PASSES}


@pytest.mark.parametrize(("program", "passes"), CHECKED)
def test_both_sides_compute_the_same(program, passes, differences):
    if not installed(program):
        pytest.skip(f"needs {peers.PACKAGES[program]}, which is in the extra compat")
    found = differences[program, passes]
    lsh = CHECKED[program, passes][0][1]["mechanism"] == "lsh"
    gradients = 2 if lsh else 3  # of qk and v, or of q, k and v
    assert len(found) == (1 if passes == "forward" else gradients)
    assert max(found) < (1e-9 if lsh else 1e-5)


def small_pair(**changes) -> Pair:
    case = Case("multi_head", 64, num_heads=2, head_dim=16, ops_only=True)
    ours, theirs = Side(peers.OURS, dataclasses.replace(case, **changes)), Side(peers.FLAX, case)
    return Pair("multi_head", ours, theirs, (ours, theirs), most_time=100, most_memory=100)


def test_a_pair_is_measured_in_two_processes(tmp_path):
    outcome = peers_run.measure(small_pair(), repeats=3, seconds=60, log=tmp_path / "log")
    assert outcome.status == "ok", outcome.message
    assert len(outcome.ratios) == 3 and min(outcome.ours_seconds + outcome.peer_seconds) > 0
    assert outcome.difference is not None and outcome.difference < 1e-5
    assert outcome.environment["platform"] == "cpu"
    assert outcome.time_met is True
    json.dumps(dataclasses.asdict(outcome))


def test_sides_that_compute_different_things_are_not_timed(tmp_path):
    pair = small_pair(causal=False)
    outcome = peers_run.measure(pair, repeats=1, seconds=60, log=tmp_path / "log")
    assert outcome.status == "failed" and "values differ" in outcome.message
    assert not outcome.ratios


def test_a_side_that_raises_is_a_row(tmp_path):
    case = Case("multi_head", 64, num_heads=2, head_dim=16, ops_only=True)
    pair = Pair("multi_head", Side("nobody", case), Side(peers.OURS, case))
    outcome = peers_run.measure(pair, repeats=1, seconds=60, log=tmp_path / "log")
    assert outcome.status == "failed" and "no program 'nobody'" in outcome.message


def test_a_missing_peer_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: keras; .* --extra=compat"):
        peers_run.compare(peers_rows.pairs(["additive"]), repeats=1, seconds=1, output_dir=tmp_path)
    peers_run.require_packages(peers_rows.pairs(["growth", "multi_head"]))
    assert not list(tmp_path.iterdir())


def test_a_run_keeps_its_rows_and_is_completed(tmp_path, monkeypatch):
    pairs = peers_rows.pairs(["growth"])[:4]
    asked = []

    def measure(pair, *, repeats, seconds, log):
        asked.append(pairs.index(pair))
        if asked == [0, 1, 2]:
            raise KeyboardInterrupt
        log.write_text("chatter" if asked != [0, 1] else "Traceback")
        where = {"device": "CPU", "cores": 2, "system": "here", "revision": "", "python": "3"}
        ok = Outcome(pair, ours_bytes=4, peer_bytes=1, environment=where | {"versions": {}})
        return ok if asked != [0, 1] else Outcome(pair, "failed", "why")

    monkeypatch.setattr(peers_run, "measure", measure)
    run = functools.partial(peers_run.compare, pairs, repeats=3, seconds=1.0, output_dir=tmp_path)
    assert run() == 130
    (folder,) = tmp_path.iterdir()
    names = {"settings.json", "results.jsonl", "report.md"}
    assert {path.name for path in folder.iterdir()} == names | {"errors.log"}
    errors = (folder / "errors.log").read_text()
    assert "Traceback" in errors and "chatter" not in errors
    assert peers_run.stored_settings(folder) == {"rows": ["growth"], "repeats": 3, "seconds": 1.0}

    (folder / "errors.log").unlink()
    with open(folder / "results.jsonl", "a") as file:
        file.write('{"cut off')
    del asked[:2]
    assert run(resume=folder) == 0 and asked == [2, 1, 2, 3]
    assert {path.name for path in folder.iterdir()} == names
    assert "4 of 4 pairs; 4 of 4 targets met." in (folder / "report.md").read_text()
    rows = (folder / "results.jsonl").read_text().splitlines()
    assert [json.loads(row)["status"] for row in rows] == ["ok", "failed", "ok", "ok", "ok"]

    (folder / "results.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="line 1 of results.jsonl is no row of this job"):
        run(resume=folder)
    monkeypatch.undo()
    for flags, message in (
        ([f"--resume={folder}", "--repeats=4"], "--repeats=4 differs from 3"),
        ([f"--resume={tmp_path}"], "no settings.json of this job there"),
    ):
        command = [sys.executable, "-m", "experiments.compare_peers", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_row_is_read_back_as_it_was():
    pair = next(pair for pair in peers_rows.pairs(["lsh"]) if pair.checked)
    outcome = Outcome(pair, ours_seconds=(1.0, 2.0), peer_seconds=(3.0, 4.0), flags={"rows": []})
    assert peers.from_json(json.dumps(dataclasses.asdict(outcome))) == outcome


@pytest.mark.parametrize(("rows", "named"), [(["nope"], "'nope'"), ([], "empty")])
def test_unknown_rows_are_refused(rows, named):
    with pytest.raises(ValueError, match=f"{named}.*valid: additive"):
        peers_rows.pairs(rows)


def lsh_outcome(length: int, ours: float, theirs: float, **bounds) -> Outcome:
    case = Case("lsh", length, ops_only=True)
    pair = Pair("crossover", Side(peers.OURS, case), Side(peers.SDPA, case), **bounds)
    return Outcome(pair, ours_seconds=(ours,) * 2, peer_seconds=(theirs,) * 2)


def test_the_ratio_is_of_neighboring_turns():
    outcome = dataclasses.replace(
        lsh_outcome(512, 1, 1, most_time=0.5, most_memory=0.5, most_bytes=10),
        ours_seconds=(1.0, 4.0, 1.0),  # the machine was busy in the second turn
        peer_seconds=(2.5, 10.0, 2.0),
        ours_bytes=9,
        peer_bytes=16,
    )
    assert outcome.time_ratio == 0.4 and outcome.time_met is True
    assert outcome.memory_met is False
    assert dataclasses.replace(outcome, peer_bytes=20).memory_met is True
    assert dataclasses.replace(outcome, ours_bytes=11, peer_bytes=99).memory_met is False


def test_crossover_is_from_where_on_ours_stays_faster():
    slow_again = [lsh_outcome(512, 1, 2), lsh_outcome(1024, 2, 1), lsh_outcome(2048, 1, 2)]
    assert peers.crossover(slow_again) == 2048
    assert peers.crossover(slow_again[:2]) is None


def test_report_says_target_and_whether_it_is_met():
    good = lsh_outcome(4096, 1.0, 8.0, most_time=1 / 6)
    bad = lsh_outcome(2048, 1.0, 1.0, most_time=0.9)
    failed = Outcome(good.pair, "failed", "a | b")
    text = peers_report.markdown([good, bad, failed], planned=4)
    assert "3 of 4 pairs; 1 of 2 targets met; 1 pairs failed." in text
    assert "| 8× faster (8 to 8; 2) | ≥ 6× faster | met |" in text
    assert "| 1× the time (1 to 1; 2) | ≤ 0.9× the time | NOT MET |" in text
    assert "failed: a \\| b" in text
    header, _, *targets = [x for x in text.split("## ")[1].splitlines() if x.startswith("|")]
    assert [x.split(" | ")[0].split(", ")[0] for x in targets] == [
        "| lsh n = 2048",
        "| lsh n = 4096",
    ]
    assert [x.rstrip(" |").endswith("NOT MET") for x in targets] == [True, False]
    table = [line for line in text.split("## crossover")[1].splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {14}
    assert peers_report.line(failed) == "failed: a | b"
