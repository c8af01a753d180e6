"""Windows over a text: what training and evaluation see of it."""

import gzip
import itertools

import numpy as np
import pytest

from attnlab.data.parts import Part
from attnlab.data.windows import (
    Windows,
    consecutive_windows,
    map_bytes,
    random_windows,
    split_of,
)
from attnlab.runs.errors import Invalid

TEXT = np.arange(101, dtype=np.uint8)


def drawn(batches, count):
    return [next(batches)["tokens"] for _ in range(count)]


def test_a_file_is_read_where_it_is_looked_at(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT.tobytes())
    data = map_bytes(path)
    assert isinstance(data, np.memmap) and data.dtype == np.uint8
    np.testing.assert_array_equal(Windows(data, 3, first_id=4)[5], [9, 10, 11])
    path.write_bytes(gzip.compress(TEXT.tobytes()))
    with pytest.raises(Invalid, match="is packed, and is read where it lies; unpack it"):
        map_bytes(path)
    path.write_bytes(b"")
    with pytest.raises(Invalid, match=r"text is empty; give a text$"):
        map_bytes(path)
    with pytest.raises(Invalid, match="nowhere: No such file or directory; give a text file$"):
        map_bytes(tmp_path / "nowhere")


@pytest.mark.parametrize(("size", "parts"), [(101, [89, 6, 6]), (3, [1, 1, 1]), (40, [36, 2, 2])])
def test_the_parts_of_a_split_are_the_whole_text(size, parts):
    split = split_of(TEXT[:size])
    found = [split.training, split.validation, split.test]
    assert [part.size for part in found] == parts
    np.testing.assert_array_equal(np.concatenate(found), TEXT[:size])


def test_windows_begin_at_every_token_that_leaves_room():
    windows = itertools.islice(Windows(TEXT, 7), 200)  # an end that is missing fills no memory
    assert [window.tolist() for window in windows] == [list(range(x, x + 7)) for x in range(95)]
    for outside in (-1, 95):
        with pytest.raises(IndexError, match=f"window {outside} of 95"):
            Windows(TEXT, 7)[outside]
    assert len(Windows(TEXT, 101)) == 1


def test_random_windows_are_seeded_and_go_on_where_they_were():
    windows = Windows(TEXT[:31], 7)

    def batches(seed=1, **part):
        return iter(random_windows(windows, batch_size=6, seed=seed, **part))

    one, other = batches(), batches()
    first = drawn(one, 3)
    np.testing.assert_array_equal(first, drawn(other, 3))
    state, after = one.get_state(), drawn(one, 2)
    again = batches()
    again.set_state(state)
    np.testing.assert_array_equal(after, drawn(again, 2))
    assert not np.array_equal(first, drawn(batches(seed=2), 3))
    starts = {int(row[0]) for batch in drawn(batches(), 40) for row in batch}
    assert starts == set(range(25))
    parts = [drawn(batches(part=Part(i, 3)), 3) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts, 1), first)


def test_positions_begin_at_every_number_that_leaves_room():
    found = random_windows(Windows(TEXT, 7), batch_size=6, seed=0, num_positions=10)
    rows = np.concatenate([batch["positions"] for batch in itertools.islice(found, 20)])
    assert np.all(np.diff(rows) == 1) and set(rows[:, 0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [101, 84, 5])
def test_consecutive_windows_have_each_token_once(size):
    batches = list(consecutive_windows(TEXT[:size], length=7, batch_size=3, first_id=4))
    tokens = np.concatenate([batch["tokens"].ravel() for batch in batches])
    assert all(batch["tokens"].shape == (3, 7) for batch in batches)
    np.testing.assert_array_equal(tokens[:size], np.arange(size) + 4)
    assert not tokens[size:].any() and len(tokens) - size < 21
