import itertools

import numpy as np
import pytest

from attnlab.core.tokens import BOS, EOS, PAD
from attnlab.data.lines import read_blocks, read_documents
from attnlab.data.masking import (
    MaskedPairs,
    Masking,
    cut,
    fixed_batches,
    join_segments,
    masked_batches,
    statistics,
)
from attnlab.data.parts import Part

WORDS = 300  # and so the id of [MASK]


def documents(sizes=(2, 5, 3, 1, 4), length=7):
    """Each token says where it stands: no two are alike."""
    ids = itertools.count(4)
    return [[np.array([next(ids) for _ in range(length)]) for _ in range(n)] for n in sizes]


def pairs(sizes=(2, 5, 3, 1, 4), **options):
    return MaskedPairs(documents(sizes), WORDS, **{"max_length": 41, **options})


def restored(row):
    """The tokens before they were masked."""
    tokens, real = row["tokens"].copy(), row["target"] != PAD
    tokens[row["masked"][real]] = row["target"][real]
    return tokens


def test_a_row_is_two_segments_and_what_was_masked_is_its_target():
    source = pairs()
    starts = {int(line[0]): d for d, lines in enumerate(source.documents) for line in lines}
    for i in range(200):
        row = source.draw(i % len(source), np.random.default_rng(i))
        tokens = restored(row)[: (row["tokens"] != PAD).sum()]
        first, second = np.flatnonzero(tokens == EOS)
        assert tokens[0] == BOS and second == len(tokens) - 1 <= 40
        assert (row["types"] == (np.arange(41) > first) * (np.arange(41) <= second)).all()
        a, b = tokens[1:first], tokens[first + 1 : second]
        for segment in (a, b):  # consecutive words of one document
            assert (np.diff(segment) == 1).all()
        count = (row["target"] != PAD).sum()
        assert count == max(1, round(0.15 * len(tokens)))
        assert len(set(row["masked"][:count])) == count
        if int(a[0]) in starts and int(b[0]) in starts and row["next"]:
            assert b[0] == a[-1] + 1
        if not row["next"]:
            assert b[0] != a[-1] + 1
    assert {len(source.draw(0, np.random.default_rng(0))[x]) for x in ("masked", "target")} == {6}


def test_shares_are_the_papers():
    many = pairs((2, 5, 3, 1, 4) * 40)  # which grain shuffles in less time than few
    batches = itertools.islice(iter(masked_batches(many, batch_size=200, seed=0)), 5)
    found = statistics(batches, WORDS)
    # Of rows this short, 15 % in whole tokens is up to 3 of 17.
    wanted = {"predicted": 0.16, "mask": 0.8, "same": 0.1, "random": 0.1, "next": 0.5}
    assert found == {name: pytest.approx(x, abs=0.02) for name, x in wanted.items()}
    other = MaskedPairs(documents(), WORDS, max_length=41, masking=Masking(0, 20, 80))
    found = statistics(fixed_batches(other, batch_size=4), WORDS)
    assert found["mask"] < 0.1 and found["random"] > 0.6


def test_each_epoch_has_other_masks_and_a_resumed_run_the_same():
    dataset = masked_batches(pairs(), batch_size=len(pairs()), seed=1)
    batches = iter(dataset)
    first, state = next(batches), batches.get_state()
    second = next(batches)
    epochs = [sorted(map(tuple, batch["tokens"])) for batch in (first, second)]
    assert epochs[0] != epochs[1]
    again = iter(dataset)
    again.set_state(state)
    for name, x in next(again).items():
        np.testing.assert_array_equal(x, second[name])


def test_processes_share_the_batches_of_one():
    whole = next(iter(masked_batches(pairs(), batch_size=6, seed=1)))
    parts = [
        next(iter(masked_batches(pairs(), batch_size=6, seed=1, part=Part(i, 2)))) for i in range(2)
    ]
    for name, x in whole.items():
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), x)


def test_fixed_batches_have_each_chunk_once_and_fill_the_last():
    source = pairs(max_length=19)
    found = [list(fixed_batches(source, batch_size=4)) for _ in range(2)]
    for one, two in zip(*found, strict=True):
        assert all((one[name] == two[name]).all() for name in one)
    following = np.concatenate([batch["next"] for batch in found[0]])
    assert (following >= 0).sum() == len(source) and len(following) % 4 == 0
    filled = found[0][-1]["next"] < 0
    assert filled.any() and not found[0][-1]["tokens"][filled].any()


def test_all_lines_but_those_alone_are_in_chunks():
    source = pairs(max_length=19)  # a chunk has two lines even where they are too long
    lines = {(d, i) for d, start, stop in source.chunks for i in range(start, stop)}
    assert lines == {(d, i) for d, n in enumerate((2, 5, 3, 1, 4)) for i in range(n) if n > 1}
    assert all(stop - start >= 2 for _, start, stop in source.chunks)


def test_a_chunk_ends_with_the_line_that_fills_a_row():
    source = MaskedPairs(documents((9, 2), length=7), WORDS, 3 * 7 + 3)
    assert source.chunks == [(0, 0, 3), (0, 3, 6), (0, 6, 9), (1, 0, 2)]


def test_neither_lengths_nor_ends_tell_whether_a_segment_follows():
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 30, 400)  # long documents, and some shorter than a row
    text = [[np.arange(4, 4 + rng.integers(5, 30)) for _ in range(n)] for n in sizes]
    for lines in text:
        lines[-1][:] = 99  # as a last line often looks
    source = MaskedPairs(text, WORDS, 64)
    rows = [source.draw(i % len(source), np.random.default_rng(i)) for i in range(6000)]
    follows = np.array([row["next"] == 1 for row in rows])
    first = np.array([((row["types"] == 0) & (row["tokens"] != PAD)).sum() for row in rows])
    second = np.array([(row["types"] == 1).sum() for row in rows])
    for size in (first, second, first + second):
        told = [((size < least) == follows).mean() for least in range(70)]
        assert max(np.abs(np.array(told) - 0.5)) < 0.03
    ends = np.array([restored(row)[row["types"] == 1][-2] == 99 for row in rows])
    full = first + second == 64
    for kind in (ends & full, ends & ~full, ~ends & full):
        assert abs(follows[kind].mean() - 0.5) < 0.05
    assert (~ends & ~full).sum() < 10


def test_a_segment_of_another_document_is_one_that_could_follow():
    """It ends where a chunk does, and begins behind its first line."""
    source = MaskedPairs(documents((3, 40), length=7), WORDS * 10, max_length=24)
    lines = {int(line[0]): i for i, line in enumerate(source.documents[1])}
    rng = np.random.default_rng(0)
    others = [source._of_another(0, 14, rng) for _ in range(300)]
    chunks = {stop: start for document, start, stop in source.chunks if document == 1}
    for other in others:
        first, stop = lines[int(other[0])], lines[int(other[-7])] + 1
        assert chunks[stop] < first and len(other) == 7 * (stop - first)


def test_a_random_word_is_any_id_but_padding():
    source = MaskedPairs(documents((2, 2), 3), 16, 12, Masking(0, 0, 100, share=1.0))
    rows = [source.draw(i % 2, np.random.default_rng(i)) for i in range(60)]
    drawn = [row["tokens"][row["masked"][row["target"] != PAD]] for row in rows]
    assert set(np.concatenate(drawn).tolist()) == set(range(PAD + 1, 16 + 1))  # 16 is [MASK]


def test_the_longer_segment_is_cut_at_both_ends():
    a, b = cut(np.arange(100), np.arange(3), 53, np.random.default_rng(0))
    assert len(a) == 50 and 10 < a[0] < 40 and (np.diff(a) == 1).all()
    assert b.tolist() == [0, 1, 2]


def test_joined_segments_have_types():
    tokens, types = join_segments(np.array([7, 8]), np.array([9]))
    assert tokens.tolist() == [BOS, 7, 8, EOS, 9, EOS] and types.tolist() == [0, 0, 0, 0, 1, 1]
    assert join_segments(np.array([7]))[1].tolist() == [0, 0, 0]


def test_blank_lines_separate_blocks(tmp_path):
    path = tmp_path / "text"
    path.write_text("\n a\nb\n \n\nc")
    assert list(read_blocks(path)) == [(2, [" a", "b"]), (6, ["c"])]
    assert read_documents(path, held_out=0.5) == ([[" a", "b"]], [["c"]])
