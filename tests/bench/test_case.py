import dataclasses
import json

import numpy as np
import pytest

from attnlab.bench import inputs
from attnlab.bench.case import Case, Result, from_json, to_json
from attnlab.bench.folder import ROWS, Folder
from tests.bench import rows


def test_json_line_round_trip_and_derived_numbers():
    result = rows.row("dot (dense)", 2048, "forward_backward", resident_peak_bytes=2**31)
    line = to_json(result)
    assert "\n" not in line and from_json(line) == result
    plain = json.loads(line)
    assert plain["memory_bytes"] == 2**31 and plain["median_seconds"] == result.seconds[1]
    assert (result.memory_source, result.case.label) == ("resident", "dot (dense)")


def test_results_and_cases_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Result(Case("dot", 8), "ok").status = "failed"


def test_memory_of_a_case_that_did_not_compile_is_unknown():
    lost = Result(Case("dot", 8), "failed")
    assert (lost.analysis_bytes, lost.memory_bytes, lost.memory_source) == (None, None, "")


def test_folders_are_never_shared_and_keep_the_last_row_of_a_case(tmp_path):
    folder, other = (Folder.create(tmp_path, {"batch": 3}) for _ in range(2))
    assert folder.path != other.path
    failed = rows.row("dot", 512, status="failed", seconds=())
    for row in (failed, rows.row("lsh", 512), rows.row("dot", 512)):
        folder.append(row)
    with open(folder.path / ROWS, "a") as file:
        file.write('{"case": {"mech')  # killed while writing
    reopened = Folder.open(folder.path)
    assert reopened.settings() == {"batch": 3}
    assert reopened.results() == [rows.row("dot", 512), rows.row("lsh", 512)]
    reopened.append(rows.row("additive", 512))
    assert len(reopened.results()) == 3


@pytest.mark.parametrize("taken", ["file", "file/below"])
def test_output_dir_that_cannot_be_made(tmp_path, taken):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--output_dir=.*file"):
        Folder.create(tmp_path / taken, {})


def test_default_text_suffices_for_the_default_lengths():
    text = inputs.read()
    assert not text.cycles(1, 8192) and text.cycles(1, text.data.size + 1)


def test_streams_are_three_different_ones_made_of_the_text_alone(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"to be or not to be, that is the question" * 10)
    text = inputs.read(str(path))
    streams = inputs.streams(text, batch=2, length=37, width=32)
    assert list(streams) == ["query", "key", "value"]
    for name, stream in streams.items():
        assert stream.shape == (2, 37, 32) and stream.dtype == np.float32
        assert 0.7 < stream.std() < 1.4, name
    assert abs(np.corrcoef(streams["query"].ravel(), streams["key"].ravel())[0, 1]) < 0.2
    longer = inputs.streams(text, batch=1, length=50, width=32)
    np.testing.assert_allclose(longer["query"][0, :37], streams["query"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "rule"), [("none", "No such file"), ("empty", "is empty")])
def test_bad_input_file(tmp_path, name, rule):
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match=rule):
        inputs.read(str(tmp_path / name))
