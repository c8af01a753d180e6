"""Tasks that are made of any text, so that nothing need be labelled by hand.

    order      is the line as it was written, or are two words beside each other swapped?
    follows    does the second line follow the first one, or is it of another document?
    spelling   which words have two letters beside each other swapped? (tags)

The test lines are of the last documents, which `pretrain` holds out as well.
"""

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from attnlab.data.lines import read_documents
from attnlab.runs.errors import Invalid
from experiments.finetune.examples import Classified, Example, Tagged

TASK_OF = {"order": "classify", "follows": "classify", "spelling": "tag"}
MADE = tuple(TASK_OF)
FEWEST = 4  # words of a line, so that it says something

Documents = Sequence[Sequence[str]]


def examples(
    kind: str, path: Path, *, train: int, test: int, held_out: float
) -> dict[str, list[Example]]:
    """The examples of each split: "train", "dev" and "test".

    Args:
      kind: kind of task, one of `MADE`.
      path: path of a text: a sentence a line, blank lines between documents.
      train: number of examples to train on.
      test: number of examples to test on, and as many to choose a checkpoint on.
      held_out: share of the documents, the last ones, to make the test and dev examples of.

    Raises:
      Invalid: the text is too short for that.
    """
    training, last = read_documents(path, held_out)
    middle = (len(last) + 1) // 2
    parts = {
        "train": (training, train),
        "dev": (last[:middle], test),
        "test": (last[middle:], test),
    }
    splits = {}
    for name, (some, count) in parts.items():
        rng = random.Random(f"{kind} {name}")
        places = [
            (d, i)
            for d, lines in enumerate(some)
            for i, line in enumerate(lines)
            if len(line.split()) >= FEWEST and (kind != "follows" or i + 1 < len(lines))
        ]
        needed = 2 if kind == "follows" else 1
        usable = len({d for d, _ in places})
        if usable < needed:
            raise Invalid(
                f"{path}: --held_out={held_out:g} of {len(training + last)} documents leaves "
                f"{usable} for the {name} examples, and {kind} needs {needed}; give another "
                "--held_out, or more documents, with blank lines between them"
            )
        if len(places) < count:
            raise Invalid(
                f"{path}: {len(places)} lines for {count} {name} examples of {kind}; give fewer, "
                "or a longer text"
            )
        chosen = rng.sample(places, count)
        make = functools.partial(_follows, places) if kind == "follows" else _MAKE[kind]
        splits[name] = [make(some, d, i, rng, f"{path}, {name}") for d, i in chosen]
    return splits


def _order(documents: Documents, d: int, i: int, rng: random.Random, where: str) -> Example:
    words = documents[d][i].split()
    places = [k for k in range(len(words) - 1) if words[k] != words[k + 1]]
    swapped = rng.random() < 0.5 and bool(places)
    if swapped:
        k = rng.choice(places)
        words[k], words[k + 1] = words[k + 1], words[k]
    return Classified((" ".join(words),), "swapped" if swapped else "written", where)


def _follows(
    places: Sequence[tuple[int, int]],
    documents: Documents,
    d: int,
    i: int,
    rng: random.Random,
    where: str,
) -> Example:
    """A line and one behind it, or one behind another place: alone it does not tell which.

    Any line of a document would: the first one, often a heading, follows none.
    """
    follows = rng.random() < 0.5
    other = d, i
    while not follows and other[0] == d:
        other = rng.choice(places)
    second = documents[other[0]][other[1] + 1]
    return Classified((documents[d][i], second), "follows" if follows else "other", where)


def _spelling(documents: Documents, d: int, i: int, rng: random.Random, where: str) -> Example:
    words, tags = documents[d][i].split(), []
    for w, word in enumerate(words):
        pairs = zip(word, word[1:], strict=False)
        places = [
            k
            for k, (x, y) in enumerate(pairs)
            if x.isalpha() and y.isalpha() and x.lower() != y.lower()
        ]
        wrong = bool(places) and rng.random() < 0.3
        if wrong:
            k = rng.choice(places)
            words[w] = word[:k] + word[k + 1] + word[k] + word[k + 2 :]
        tags.append("wrong" if wrong else "right")
    return Tagged(tuple(words), tuple(tags), where)


_MAKE: dict[str, Callable[[Documents, int, int, random.Random, str], Example]] = {
    "order": _order,
    "spelling": _spelling,
}
