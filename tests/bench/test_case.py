import gzip

import numpy as np
import pytest

from attnlab.bench import inputs
from attnlab.bench.case import DERIVED, Case, Result
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from tests.bench import rows


def test_a_row_on_disk_has_the_derived_numbers_too(tmp_path):
    folder = Folder.fresh("compare", tmp_path, {})
    folder.begin()
    kept: Rows = Rows(folder, lambda row: row.case, [Result], derived=DERIVED)
    result = rows.row("dot:dense", 2048, "forward_backward", resident_peak_bytes=2**31)
    kept.add(result)
    (plain,) = folder.rows().values()
    assert plain["memory_bytes"] == 2**31 and plain["median_seconds"] == result.seconds[1]
    assert (result.memory_source, result.case.label) == ("resident", "dot:dense")
    (again,) = Rows(folder, lambda row: row.case, [Result]).kept.values()
    assert again.row == result


def test_memory_of_a_case_that_did_not_compile_is_unknown():
    lost = Result(Case("dot", 8), "failed")
    assert (lost.analysis_bytes, lost.memory_bytes, lost.memory_source) == (None, None, "")


def test_default_text_suffices_for_the_default_lengths():
    text = inputs.read()
    assert not text.cycles(1, 8192) and text.cycles(1, text.data.size + 1)


def test_a_packed_text_is_that_text(tmp_path):
    """Its own bytes are noise, which hashing has an easy day with."""
    (tmp_path / "packed").write_bytes(gzip.compress(b"to be or\nnot to be"))
    assert inputs.read(str(tmp_path / "packed")).data.tobytes() == b"to be or\nnot to be"


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
