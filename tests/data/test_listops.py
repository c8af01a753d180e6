"""ListOps: its grammar, its values, and the statistics of the released generator."""

import collections
import random
import statistics

import pytest

from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.listops import CLASSES, VOCABULARY, ListOps, encode, value

SHORT = {"min_length": 20, "max_length": 100}


def released(draw, depth, max_depth=10, max_args=10):
    """A node as the released program draws it, as tokens: a recursion without any early end."""
    chance = draw.random() if depth < max_depth else 1
    if chance > 0.25:
        return [str(draw.choice(range(10)))]
    count = draw.randint(2, max_args)
    arguments = [released(draw, depth + 1, max_depth, max_args) for _ in range(count)]
    operator = draw.choice(["[MIN", "[MAX", "[MED", "[SM"])
    return [operator, *(token for one in arguments for token in one), "]"]


def depth_of(tokens):
    depth = most = 0
    for token in tokens:
        depth += (token[0] == "[") - (token == "]")
        most = max(most, depth)
    return most


def numbers(tokens):
    """What is compared: length, depth, shares of digits and of each operator, arguments."""
    count = len(tokens)
    operators = [token for token in tokens if token[0] == "["]
    found = {"length": count, "depth": depth_of(tokens)}
    found["digits"] = sum(token.isdigit() for token in tokens) / count
    found["arguments"] = (count - 2 * len(operators) + len(operators) - 1) / len(operators)
    return found | {name: operators.count(name) / len(operators) for name in ("[MIN", "[SM")}


def test_statistics_are_those_of_the_released_generator():
    draw = random.Random(0)
    theirs = []
    while len(theirs) < 400:
        tokens = released(draw, 1)
        if SHORT["min_length"] <= len(tokens) <= SHORT["max_length"]:
            theirs.append(numbers(tokens))
    source = ListOps(**SHORT, size=400)
    ours = [numbers(source[i]["text"].split()) for i in range(400)]
    for name in ours[0]:
        a, b = ([one[name] for one in some] for some in (ours, theirs))
        error = ((statistics.variance(a) + statistics.variance(b)) / 400) ** 0.5
        assert abs(statistics.fmean(a) - statistics.fmean(b)) < 4 * error, name


def test_labels_are_the_values_of_the_texts():
    source = ListOps(**SHORT, size=60)
    labels = set()
    for i in range(60):
        example = source[i]
        tokens = example["text"].split()
        assert SHORT["min_length"] <= len(tokens) <= SHORT["max_length"]
        assert value(example["text"]) == example["label"] and depth_of(tokens) <= 9
        labels.add(example["label"])
    assert len(labels) > 7


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[MIN 3 4 ]", 3),
        ("[MAX 3 4 ]", 4),
        ("[MED 1 4 ]", 2),
        ("[SM 9 [MAX 1 8 ] 5 ]", 2),
        ("7", 7),
    ],
)
def test_operators(text, found):
    """The median of an even number of digits is cut to a whole one."""
    assert value(text) == found


def test_ids_are_behind_the_special_ones():
    assert encode("[MAX 0 9 ]") == [NUM_SPECIAL + i for i in (11, 0, 9, len(VOCABULARY) - 1)]
    assert CLASSES == 10 and len(VOCABULARY) == 15


def read_two_tokens(text):
    """The first operator, and the digit directly under it that decides a MAX or a MIN."""
    depth, digits = 0, []
    for word in text.split():
        if word.isdigit() and depth == 1:
            digits.append(int(word))
        depth += word.startswith("[") - (word == "]")
    operator = text.split()[0]
    decides = {"[MAX": max, "[MIN": min}.get(operator)
    return (operator, decides(digits)) if decides and digits else (operator,)


def test_two_tokens_tell_nearly_half_of_the_classes():
    """So a model that is right in 45 % of the expressions may have read no other token."""
    behind = collections.defaultdict(collections.Counter)
    for example in ListOps(32, 255, seed=0, size=1000):
        behind[read_two_tokens(example["text"])][example["label"]] += 1
    guess = {seen: labels.most_common(1)[0][0] for seen, labels in behind.items()}
    test = ListOps(32, 255, seed=1, size=1000)
    right = [guess.get(read_two_tokens(x["text"])) == x["label"] for x in test]
    assert 0.41 < sum(right) / len(right) < 0.48
