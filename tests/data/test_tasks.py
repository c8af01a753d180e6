import re

import pytest

from attnlab.data.dates import SPLITS, Dates, dates_of
from attnlab.data.listops import ListOps
from attnlab.data.tasks import ENDLESS, MARK, Copy, KeyMatching, Reversal

RANGE = {"num_symbols": 17, "min_length": 3, "max_length": 11}


def symbols(text: str) -> list[int]:
    return [int(symbol) for symbol in text.split()]


@pytest.mark.parametrize(
    ("task", "answer"), [(Copy(**RANGE), list), (Reversal(**RANGE), lambda w: w[::-1])]
)
def test_the_target_is_the_answer(task, answer):
    examples = [task[i] for i in range(200)]
    words = [symbols(example["source"]) for example in examples]
    assert [symbols(example["target"]) for example in examples] == [answer(word) for word in words]
    assert {len(word) for word in words} == set(range(3, 12))
    assert {symbol for word in words for symbol in word} == set(range(1, 18))


@pytest.mark.parametrize(
    "make",
    [lambda s: Copy(**RANGE, seed=s), lambda s: Dates(seed=s), lambda s: ListOps(20, 99, seed=s)],
)
def test_an_example_depends_on_seed_and_index_alone(make):
    indices = [5, 0, ENDLESS - 1, 5]
    first = [make(3)[i] for i in indices]
    assert first == [make(3)[i] for i in indices]
    assert first[0] == first[3] != first[1]
    assert first != [make(4)[i] for i in indices]
    assert len(make(3)) == ENDLESS
    with pytest.raises(IndexError):
        make(3)[ENDLESS]


def test_splits_of_dates_differ_by_seed_of_their_own():
    firsts = {Dates(split)[0]["source"] for split in SPLITS}
    assert len(firsts) == 3


def test_no_date_is_in_two_splits():
    splits = [set(dates_of(split)) for split in SPLITS]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 73_049  # days of 200 years
    assert all(len(dates) > 7000 for dates in splits)
    seen = [{Dates(split)[i]["target"] for i in range(3000)} for split in SPLITS]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_pairs_match_if_their_keys_do():
    pairs = KeyMatching(length=23, key_length=2, num_letters=3, size=80)
    labels = []
    for i in range(len(pairs)):
        example = pairs[i]
        sides = example["first"], example["second"]
        keys = [re.fullmatch(rf"[abc]*{MARK}([abc]{{2}})[abc]*", side)[1] for side in sides]
        assert {len(side) for side in sides} == {23}
        assert (keys[0] == keys[1]) == example["label"]
        labels.append(example["label"])
    assert 25 < sum(labels) < 55
    assert pairs[3] == KeyMatching(23, 2, 3)[3] != KeyMatching(23, 2, 3, seed=1)[3]
    with pytest.raises(IndexError, match="example 80 of 80"):
        pairs[80]
