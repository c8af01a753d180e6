"""`compare_peers` is a preset of `compare_lengths`: its cases, and what it says without peers."""

import dataclasses
import importlib.util

from attnlab.bench.case import ACCURACY
from experiments.compare_lengths.run import base_of
from experiments.compare_peers import __main__ as compare_peers
from experiments.compare_peers.settings import ROWS, Settings
from tests.experiments import tiny


def test_a_row_is_flags_of_compare_lengths():
    parts = Settings().parts()
    assert parts.keys() == ROWS.keys()
    (base, *_), peer = parts["exact"], parts["exact"][-1]
    assert (base.label, base.against, peer.label, peer.against) == (
        "exact", None, "jax_nn", "exact",
    )  # fmt: skip
    assert {case.num_heads for case in parts["exact"]} == {8} and base.ops_only
    assert [case.dtype for case in parts["accuracy"][::8]] == ["float32", "bfloat16"]
    assert {case.passes for case in parts["accuracy"]} == {ACCURACY}
    assert {case.passes for case in parts["training"]} == {"train_step"}
    assert [case.length for case in parts["lsh_growth"]] == [16384, 65536, 65536, 262144]
    # Nothing but the memory differs, so each row has its own base.
    kept = [dataclasses.replace(case, keep_memory=False) for case in parts["lsh_kept"]]
    assert kept == parts["lsh"] and base_of(parts["lsh_kept"][-1]) in parts["lsh_kept"]
    # The same case is measured once.
    assert set(parts["exact"]) & set(parts["sdpa"])


def test_a_missing_peer_is_one_line_that_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = tiny.run(compare_peers, "--rows=lsh,additive", f"--output_dir={tmp_path}")
    assert status == 2 and err.count("\n") == 1
    assert "not installed: " in err and "launch/local --extra=compat" in err
    for name in ("transformers", "reformer-pytorch", "torch", "keras"):
        assert name in err
