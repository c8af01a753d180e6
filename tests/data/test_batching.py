"""What is in the batches; that they come again after a stop is in test_resume.py."""

import gc
import threading
from itertools import islice

import numpy as np
import pytest

from attnlab.core.tokens import EOS, PAD
from attnlab.data import encoding
from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.encoding import count_too_long
from attnlab.data.parts import Part
from attnlab.data.tasks import Reversal
from attnlab.data.tokenizers import Numbers

NUMBERS = Numbers(50)
TASK = Reversal(num_symbols=49, min_length=2, max_length=19, size=97)


class Listed:
    def __init__(self, examples):
        self.examples = list(examples)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def training(source=TASK, batch_size=6, max_length=20, seed=3, **options):
    return train_batches(
        source, NUMBERS, NUMBERS, batch_size=batch_size, max_length=max_length, seed=seed, **options
    )


def text(row):
    row = row[row != PAD].tolist()
    assert row[-1] == EOS and row.count(EOS) == 1
    return NUMBERS.decode(row)


def pairs_of(batch):
    rows = zip(batch["source"], batch["target"], strict=True)
    return [{"source": text(source), "target": text(target)} for source, target in rows]


def sorted_pairs(pairs):
    return sorted(pairs, key=lambda pair: pair["source"])


@pytest.mark.parametrize(("batch_size", "pool_batches"), [(2, 47), (47, 1)])
def test_each_epoch_has_every_short_enough_pair_once(batch_size, pool_batches):
    kept = [pair for pair in TASK if len(pair["source"].split()) < 19]
    assert len(kept) == 2 * 47 < 97  # so that an epoch is a whole number of batches
    sizes = {"batch_size": batch_size, "pool_batches": pool_batches, "max_length": 19}
    batches = iter(training(**sizes))
    epochs = []
    for _ in range(3):
        batch_list = list(islice(batches, 94 // batch_size))
        epochs.append([pair for batch in batch_list for pair in pairs_of(batch)])
        assert sorted_pairs(epochs[-1]) == sorted_pairs(kept)
    assert epochs[0] != epochs[1] != epochs[2]
    assert count_too_long(TASK, NUMBERS, NUMBERS, max_length=19) == (3, 97)


def test_a_batch_holds_alike_lengths_in_few_shapes():
    shapes, spread, tokens, cells = set(), [], 0, 0
    batches = list(islice(training(pool_batches=16), 64))
    for batch in batches:
        assert batch["source"].dtype == batch["target"].dtype == np.int32
        lengths = (batch["source"] != PAD).sum(1)
        assert batch["source"].shape == (6, -(-lengths.max() // 8) * 8) == batch["target"].shape
        shapes.add(batch["source"].shape)
        spread.append(lengths.max() - lengths.min())
        tokens, cells = tokens + lengths.sum(), cells + batch["source"].size
    assert shapes == {(6, 8), (6, 16), (6, 24)}
    assert np.mean(spread) < 2
    longest = [batch["source"].shape[1] for batch in batches[:16]]
    assert longest != sorted(longest)  # not the short ones first


def test_a_batch_holds_alike_sources_where_all_targets_are_alike():
    unlike = Listed({"source": "1 " * (1 + i), "target": "2"} for i in range(18))
    for batch in islice(training(unlike, pool_batches=3), 3):
        assert np.ptp((batch["source"] != PAD).sum(1)) == 5


@pytest.mark.parametrize("same_length", [False, True])
def test_both_sides_may_have_one_length(same_length):
    unlike = Listed({"source": "1 " * (1 + i % 3), "target": "2 " * (9 + i)} for i in range(12))
    batch = next(iter(training(unlike, same_length=same_length)))
    of_test = [x for _, x in evaluation_batches(
        unlike, NUMBERS, NUMBERS, batch_size=5, same_length=same_length
    )]  # fmt: skip
    for sides in (batch, *of_test):
        assert (sides["source"].shape == sides["target"].shape) == same_length
        assert sides["source"].shape[1] == (sides["target"].shape[1] if same_length else 8)
        assert all(
            set(pair["source"]) == {"1", " "} or pair["source"] == "1"
            for pair in pairs_of({k: x[x[:, 0] != PAD] for k, x in sides.items()})
        )


def test_what_is_remembered_is_what_was_encoded(monkeypatch):
    remembered = list(islice(training(), 40))
    monkeypatch.setattr(encoding, "REMEMBERED", 0)
    for batch, other in zip(training(), remembered, strict=False):
        np.testing.assert_array_equal(batch["source"], other["source"])


def test_the_parts_of_a_batch_follow_one_another():
    whole = islice(training(), 25)
    parts = [islice(training(part=Part(p, 3)), 25) for p in range(3)]
    for batch, *rows in zip(whole, *parts, strict=True):
        for name, array in batch.items():
            assert [part[name].shape[0] for part in rows] == [2, 2, 2]
            np.testing.assert_array_equal(np.concatenate([part[name] for part in rows]), array)


def segments_of(batch, name):
    """Yields the rows' segments as texts, after looking at positions and padding."""
    tokens, segments = batch[name], batch[f"{name}_segments"]
    for row, ids, positions in zip(tokens, segments, batch[f"{name}_positions"], strict=True):
        assert ((row == PAD) == (ids == 0)).all() and (positions[ids == 0] == 0).all()
        assert (np.diff(ids[ids > 0]) >= 0).all()
        for segment in range(1, ids.max() + 1):
            assert positions[ids == segment].tolist() == list(range((ids == segment).sum()))
            yield row[ids == segment]


def test_packed_rows_hold_whole_pairs_each_once():
    batches = list(islice(training(pack=True, max_length=41), 60))
    found = [
        {"source": text(source), "target": text(target)}
        for batch in batches
        for source, target in zip(
            segments_of(batch, "source"),
            segments_of(batch, "target"),
            strict=True,
        )
    ]
    assert all(array.shape == (6, 41) for batch in batches for array in batch.values())
    assert np.mean([(batch["source"] != PAD).mean() for batch in batches]) > 0.8
    for start in range(0, len(found) - 97 * 2, 97):  # an epoch's last batch has pairs of the next
        counts = [found[: start + 97 * 2].count(pair) for pair in TASK]
        assert set(counts) <= {start // 97 + 1, start // 97 + 2, start // 97 + 3}
    assert len(found) > 97 * 5


def test_evaluation_has_every_example_once_in_place():
    found, widths = {}, []
    for indices, batch in evaluation_batches(TASK, NUMBERS, NUMBERS, batch_size=10):
        assert batch["source"].shape[0] == batch["target"].shape[0] == 10
        assert (batch["source"][len(indices) :] == PAD).all()
        rows = {name: array[: len(indices)] for name, array in batch.items()}
        found |= dict(zip(indices.tolist(), pairs_of(rows), strict=True))
        widths.append(batch["source"].shape[1])
    assert found == dict(enumerate(TASK))
    assert len(widths) == 10 and widths == sorted(widths) and set(widths) == {8, 16, 24}


@pytest.mark.slow
def test_an_iterator_that_is_dropped_leaves_no_thread():
    for close in (True, False):
        before = set(threading.enumerate())
        batches = iter(training())
        next(batches)
        (thread,) = set(threading.enumerate()) - before
        if close:
            batches.close()
            assert not thread.is_alive()
        del batches
        gc.collect()
        thread.join(timeout=5)
        assert not thread.is_alive()
