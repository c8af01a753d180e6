"""Texts with labels, of TSV files or TFDS, in splits that share their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attnlab.data.lines import decoded_lines
from attnlab.runs.errors import Invalid

__all__ = ["classes_of", "read_labelled", "require_classes"]

Row = dict[str, str]


def read_labelled(path: Path) -> list[Row]:
    """The examples {"text", "label"} of a file with a label, a tab and a text in each line.

    Raises:
      Invalid: a line without a label or a text, or no line at all.
    """
    examples = []
    for number, line in enumerate(decoded_lines(path), 1):
        label, tab, text = line.partition("\t")
        if not tab:
            raise Invalid(f"{path}, line {number}: must be label, tab, text; got no tab")
        if not (label.strip() and text.strip()):
            raise Invalid(f"{path}, line {number}: the label or the text is empty; remove the line")
        examples.append({"text": text, "label": label.strip()})
    if not examples:
        raise Invalid(f"{path}: there is no example in it; give lines of label, tab, text")
    return examples


def require_classes(labels: Sequence[str]) -> None:
    """The labels of the training examples must be at least two."""
    if len(labels) < 2:
        got = f"the label {labels[0]} alone" if labels else "no example"
        raise Invalid(f"training has {got}; give at least two classes")


def classes_of(splits: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """The labels of the split "train" in order; every other split must have no other.

    Raises:
      Invalid: a label that was not in training, or a single class.
    """
    labels = {row["label"] for row in splits["train"]}
    classes = sorted(labels, key=lambda x: (0, int(x), x) if x.isdecimal() else (1, 0, x))
    require_classes(classes)
    for name, rows in splits.items():
        for number, row in enumerate(rows, 1):
            if row["label"] not in classes:
                raise Invalid(
                    f"example {number} of {name} has the label {row['label']!r}, which was not in "
                    f"training: {', '.join(classes)}"
                )
    return classes
