"""Scores of a fine-tuned model: accuracy, F1 of entities, exact match and F1 of answers."""

import collections
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnlab.runs.errors import Invalid
from experiments.finetune.data import Data
from experiments.finetune.encode import NONE, Encoded
from experiments.finetune.examples import Example, Span, Tagged


def scores_of(kind: str, logits: np.ndarray, data: Data) -> dict[str, float]:
    """What of the test examples is right, by name; `kind` is "classify", "tag" or "span"."""
    rows, examples = data.rows["test"], data.examples["test"]
    if kind == "classify":
        return of_classes(logits, rows)
    if kind == "tag":
        short = [x[: len(row.tokens)] for x, row in zip(logits, rows, strict=True)]
        return of_tags(short, rows, [x for x in examples if isinstance(x, Tagged)], data.labels)
    short = [x[:, : len(row.tokens)] for x, row in zip(logits, rows, strict=True)]
    return of_spans(short, rows, [x for x in examples if isinstance(x, Span)])


def of_classes(logits: np.ndarray, rows: Sequence[Encoded]) -> dict[str, float]:
    """The share of right classes; logits [n, C]."""
    right = logits.argmax(-1) == np.array([row.label for row in rows])
    return {"accuracy": float(right.mean())}


def of_tags(
    logits: Sequence[np.ndarray],
    rows: Sequence[Encoded],
    examples: Sequence[Tagged],
    labels: Sequence[str],
) -> dict[str, float]:
    """The share of right tags, and the F1 of entities, or of the rarest tag here without any.

    Words that were cut off have no tag and are in no entity.

    Logits are [T, C] of each row.
    """
    right = total = 0
    counted: collections.Counter[str] = collections.Counter()
    has_entities = have_entities(labels)
    counts = collections.Counter(tag for example in examples for tag in example.tags)
    rarest = min(sorted(counts), key=lambda tag: counts[tag])
    for scores, row, example in zip(logits, rows, examples, strict=True):
        at = np.flatnonzero(row.label != NONE)
        chosen = [labels[i] for i in scores[at].argmax(-1)]
        total += len(example.tags)
        right += sum(x == y for x, y in zip(example.tags, chosen, strict=False))
        chosen += ["O"] * (len(example.tags) - len(chosen))
        named: Iterable[Sequence[str]] = (example.tags, chosen)
        if not has_entities:  # each word of the rarest tag is an entity
            named = (["B-rarest" if tag == rarest else "O" for tag in some] for some in named)
        sides = [entities(tags) for tags in named]
        counted.update(wanted=len(sides[0]), chosen=len(sides[1]), both=len(sides[0] & sides[1]))
    said = counted["wanted"] + counted["chosen"]
    return {"f1": 2 * counted["both"] / said if said else 1.0, "accuracy": right / total}


def have_entities(labels: Sequence[str]) -> bool:
    """Whether labels are parts of entities: some begin with "B-" or "I-".

    Raises:
      Invalid: some do, and others are no part of one.
    """
    some = [label for label in labels if label.startswith(("B-", "I-"))]
    others = [label for label in labels if not re.fullmatch(r"O|[BIMELSUW]-\S+", label)]
    if some and others:
        raise Invalid(
            f"the tag {others[0]!r} is no part of an entity, and {some[0]!r} is; give O, or B-, "
            "I-, E- and S- (or L- and U-) with a kind"
        )
    return bool(some)


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first word, word behind the last, kind) of each entity, in IOB, IOBES, BILOU or BMEWO.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    >>> sorted(entities(["S-PER", "U-PER", "B-LOC", "E-LOC", "I-LOC"]))
    [(0, 1, 'PER'), (1, 2, 'PER'), (2, 4, 'LOC'), (4, 5, 'LOC')]
    """
    spans, start = set(), 0
    kinds = [tag.partition("-")[2] for tag in tags] + [""]
    parts = [tag[0] for tag in tags] + ["O"]
    for i in range(1, len(kinds)):
        if kinds[i] != kinds[i - 1] or parts[i] in "BSUW" or parts[i - 1] in "ELSUW":
            if kinds[i - 1]:
                spans.add((start, i, kinds[i - 1]))
            start = i
    return spans


def of_spans(
    logits: Sequence[np.ndarray], rows: Sequence[Encoded], examples: Sequence[Span]
) -> dict[str, float]:
    """F1 of words and exact match with the nearest right answer (Rajpurkar et al. 2016, §6.1).

    Logits are [2, T] of first and last tokens, of each row.
    """
    f1, exact = [], []
    for scores, row, example in zip(logits, rows, examples, strict=True):
        answer = _plain(answer_of(scores, row, example))
        right = _right(example)
        exact.append(max(answer == one for one in right))
        f1.append(max(_overlap(answer, one) for one in right))
    return {"f1": float(np.mean(f1)), "exact match": float(np.mean(exact))}


def answer_of(scores: np.ndarray, row: Encoded, example: Span) -> str:
    """The text of the likeliest span, "" where the first token says that there is none.

    Of all spans whose end is not before their start (Devlin et al. 2018, §4.2): the 30 tokens at
    most of the released code are WordPieces of English, and few bytes.
    """
    assert row.places is not None
    is_context = row.places[:, 1] > 0  # [CLS], the question and [SEP] are not
    allowed = np.triu(is_context[:, None] & is_context[None])
    allowed[0, 0] = True  # no answer
    both = np.where(allowed, scores[0, :, None] + scores[1, None], -np.inf)
    return _text_of(np.unravel_index(both.argmax(), both.shape), row, example)


def out_of_reach(rows: Sequence[Encoded], examples: Sequence[Example]) -> int:
    """How many examples have a right answer that the tokens of no span are, or that was cut off."""
    return sum(
        isinstance(example, Span)
        and _plain(_text_of(row.label, row, example)) not in _right(example)
        for row, example in zip(rows, examples, strict=True)
    )


def _text_of(ends: Sequence[Any] | np.ndarray, row: Encoded, example: Span) -> str:
    """The text from one token to another; "" of the first of all."""
    assert row.places is not None
    start, stop = ends
    return example.context[row.places[start, 0] : row.places[stop, 1]].strip()


def _right(example: Span) -> list[list[str]]:
    return [_plain(text) for text, _ in example.answers] or [[]]


def _plain(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(answer: Sequence[str], right: Sequence[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    both = sum((collections.Counter(answer) & collections.Counter(right)).values())
    return 2 * both / (len(answer) + len(right))
