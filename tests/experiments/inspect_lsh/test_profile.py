"""The part profile: small real programs, and the command line as a user has it."""

import json

import jax
import jax.numpy as jnp
import pytest

from attnlab.bench import inputs, mechanisms
from attnlab.bench.case import PASSES, Case
from attnlab.runs.errors import Invalid
from experiments.inspect_lsh import __main__ as inspect_lsh
from experiments.inspect_lsh import profile as profile_module
from experiments.inspect_lsh.profile import STAGES, Profile, num_buckets_of, profile
from experiments.inspect_lsh.trace import Span
from tests.experiments.tiny import rows_of

SMALL = (
    "--parts=profile --num_heads=2 --head_dim=8 --num_hashes=2 --chunk_size=4 --repeats=2".split()
)
FILES = ["report.md", "results.jsonl", "settings.json", "shares.svg"]


def made_up(length: int, passes: str = "forward", **fields) -> Profile:
    """A row whose stages take 1, 2, … 6 ms."""
    stages = {stage: i * 1e-3 for i, stage in enumerate(STAGES, 1)}
    largest = {"name": "dot.1", "op_name": "jit(f)/lsh_attend/dot", "stage": "attend"}
    known = dict(
        seconds=(0.02, 0.022, 0.03),
        traced_seconds=0.025,
        stages=stages,
        instructions=({**largest, "seconds": 3e-3},),
    )
    return Profile(Case("lsh-4", length, passes), 64, **(known | fields))


@pytest.mark.slow
@pytest.mark.parametrize("passes", PASSES)
def test_every_stage_of_a_real_program_has_its_share(passes):
    case = Case("lsh-2", 250, passes, num_heads=2, head_dim=8, chunk_size=16)
    found = profile(case, inputs.read(), num_buckets=None, repeats=2)
    assert found.status == "ok" and found.num_buckets == 32 and len(found.seconds) == 2
    assert sum(found.shares.values()) == pytest.approx(1)
    assert tuple(found.shares) == STAGES and min(found.shares.values()) > 0
    assert 0 < sum(found.stages.values()) <= found.traced_seconds
    seconds = [one["seconds"] for one in found.instructions]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("causal", [True, False])
def test_the_program_is_that_of_the_librarys_route(causal):
    case = Case("lsh-4", 40, causal=causal, ops_only=True, num_heads=2, head_dim=8, chunk_size=8)
    streams = inputs.streams(inputs.read(), batch=1, length=40, width=16).values()
    qk, _, v = (x.reshape(1, 40, 2, 8) for x in streams)
    way = profile_module.mechanism(case, num_buckets_of(case, None))
    theirs = jax.jit(mechanisms.build(case).apply)({}, qk, v)
    assert jnp.allclose(jax.jit(way.apply)({}, qk, v), theirs, rtol=1e-5, atol=1e-5)


def test_the_stages_are_those_of_the_fastest_call(monkeypatch):
    taken = iter([0.3, 0.1, 0.2])

    def traced(call, program):
        seconds = next(taken)
        return seconds, [Span(next(iter(program)), 0, seconds * 0.9e9)]

    monkeypatch.setattr(profile_module.trace, "traced", traced)
    case = Case("lsh-4", 64, num_heads=2, head_dim=8, chunk_size=16)
    found = profile(case, inputs.read(), num_buckets=None, repeats=3)
    assert found.traced_seconds == 0.1
    assert sum(found.stages.values()) == pytest.approx(0.09)


def test_the_program_has_the_buckets_that_were_asked_for():
    case = Case("lsh-4", 64, num_heads=2, head_dim=8, chunk_size=16)
    found = profile(case, inputs.read(), num_buckets=6, repeats=1)
    assert found.num_buckets == 6
    with pytest.raises(Invalid, match="must be 1, or it"):
        profile_module.check([case], 7)


def test_what_does_not_fit_is_not_run(monkeypatch):
    monkeypatch.setattr(profile_module.memory, "available", lambda device: 1000)
    case = Case("lsh-4", 64, num_heads=2, head_dim=8, chunk_size=16)
    found = profile(case, inputs.read(), num_buckets=None, repeats=1)
    assert found.status == "too_large" and found.message.startswith("needs ")


@pytest.mark.slow
def test_a_run_leaves_everything_it_promises(tmp_path, capsys):
    command = ["inspect_lsh", "--lengths=64,32", *SMALL, f"--output_dir={tmp_path}"]
    assert inspect_lsh.main([*command, "--passes=forward", "--nocausal", "--dtype=bfloat16"]) == 0
    out = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = rows_of(folder)
    assert [row["case"]["length"] for row in rows] == [32, 64]
    for row in rows:
        assert row["case"]["dtype"] == "bfloat16" and not row["case"]["causal"]
        assert row["flags"]["chunk_size"] == 4 and row["flags"]["num_buckets"] is None
        assert row["environment"]["versions"]["jax"] and row["time"]
        assert sum(row["shares"].values()) == pytest.approx(1) and row["shares"]["attend"] > 0
    assert "[2/2] n = 64, forward … " in out and "Largest stage of forward at n = 64: " in out


def test_one_failure_is_a_row_and_the_rest_go_on(tmp_path, monkeypatch, capsys):
    def fails_once(case, *_, **__):
        if case.length == 32:
            raise RuntimeError("the device\nfell over")
        return made_up(case.length)

    monkeypatch.setattr(profile_module, "profile", fails_once)
    flags = ["--lengths=32,64", "--passes=forward", *SMALL, f"--output_dir={tmp_path}"]
    assert inspect_lsh.main(["inspect_lsh", *flags]) == 1
    (folder,) = tmp_path.iterdir()
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed", "ok"]
    assert "RuntimeError: the device fell over" in (folder / "report.md").read_text()
    assert "fell over" in (folder / "errors.log").read_text()
    assert "failed: RuntimeError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rounds=2", "--rounds=2: needs quality in --parts"),
        ("--num_buckets=7", "must be 1, or it"),
        ("--num_buckets=0", "must be 1, or it"),
    ],
)
def test_bad_flags_end_in_one_line(flags, message, capsys):
    small = ["--lengths=32", *SMALL, "--output_dir=/dev/null/x"]
    assert inspect_lsh.main(["inspect_lsh", *small, *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err
