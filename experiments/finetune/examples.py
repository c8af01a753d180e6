"""Labelled examples from files of the common shapes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.data.lines import decoded_lines, read_blocks
from attnlab.runs.errors import Invalid

__all__ = ["Classified", "Example", "Span", "Tagged", "read"]


@dataclasses.dataclass(frozen=True)
class Classified:
    """A sentence, or a pair, and its class; `where` is its place in a file."""

    texts: tuple[str, ...]
    label: str
    where: str


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Words, a tag each; `where` is their place in a file."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str


@dataclasses.dataclass(frozen=True)
class Span:
    """A question, a text, and its right answers in it; none = the text does not answer it.

    Attributes:
      question: text of the question.
      context: text to find the answer in.
      answers: (text, number of the first character) of each right answer; the first is learnt.
      where: place in a file.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    where: str


Example = Classified | Tagged | Span

# Names of the texts' columns, each of a task of GLUE, and of the labels'.
_TEXTS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("source", "target"),
    ("text", "text_b"),
    ("sentence",),
    ("text",),
)
_LABELS = ("gold_label", "label", "is_duplicate", "quality", "class")


def read(task: str, path: Path, columns: Sequence[str] = ()) -> list[Any]:
    """The examples of a file.

    Args:
      task: "classify", "tag" or "span".
      path: path of the file: TSV or JSON lines, CoNLL's, or SQuAD's JSON.
      columns: names, or numbers from 1 in a file without a header, of a sentence's or a pair's
        texts and of the label, which is the last; () = the usual ones.

    Raises:
      Invalid: the file is missing, has another shape, or an empty text; one line, with its number.
    """
    kinds: dict[str, Callable[[], Iterable[Example]]] = {
        "classify": lambda: _classified(path, columns),
        "tag": lambda: _tagged(path),
        "span": lambda: _spans(path),
    }
    found = list(kinds[task]())
    if not found:
        raise Invalid(f"{path}: there are no examples in it; give a file with some")
    return found


def _classified(path: Path, columns: Sequence[str]) -> Iterator[Classified]:
    names: Sequence[str] = ()
    for number, values in _records(path, columns):
        where = f"{path}, line {number}"
        names = names or _chosen(values, columns, where)
        missing = [name for name in names if name not in values]
        if missing:
            raise Invalid(f"{where}: no {missing[0]!r}; it has {', '.join(values)}")
        *texts, label = (str(values[name]).strip() for name in names)
        if not all(texts) or not label:
            raise Invalid(f"{where}: an empty {'text' if label else 'label'}; remove the line")
        yield Classified(tuple(texts), label, where)


def _records(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The number of each line, and its values by column."""
    lines = ((number, line) for number, line in enumerate(decoded_lines(path), 1) if line.strip())
    if path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        for number, line in lines:
            yield number, _object(line, f"{path}, line {number}")
        return
    header: list[str] = []
    for number, line in lines:
        cells = line.split("\t")
        if not header and columns and all(name.isdecimal() for name in columns):
            header = [str(i + 1) for i in range(len(cells))]
        elif not header:
            header = cells
            continue
        if len(cells) != len(header):
            raise Invalid(
                f"{path}, line {number}: {len(cells)} columns, and the first line has {len(header)}"
            )
        yield number, dict(zip(header, cells, strict=True))


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise Invalid(f"{where}: not a JSON object; give one a line")
    return values


def _chosen(values: Mapping[str, Any], columns: Sequence[str], where: str) -> Sequence[str]:
    """The names of the columns to read: those asked for, or the usual ones that are there."""
    if columns:
        return columns
    label = next((name for name in _LABELS if name in values), None)
    texts = next((names for names in _TEXTS if set(names) <= values.keys()), None)
    if label is None or texts is None:
        raise Invalid(
            f"{where}: columns {', '.join(map(str, values))}, of which none is known for a text or "
            "for its label; name them, as --columns=TEXT,LABEL"
        )
    return (*texts, label)


def _tagged(path: Path) -> Iterator[Tagged]:
    for number, block in read_blocks(path):
        cells = [line.split() for line in block if not line.startswith("-DOCSTART-")]
        if short := next((i for i, one in enumerate(cells) if len(one) < 2), None):
            raise Invalid(f"{path}, line {number + short}: a word without a tag")
        if cells and len(cells[0]) < 2:
            raise Invalid(f"{path}, line {number}: a word without a tag")
        if cells:
            words, tags = zip(*((one[0], one[-1]) for one in cells), strict=True)
            yield Tagged(words, tags, f"{path}, line {number}")


def _spans(path: Path) -> Iterator[Span]:
    text = "\n".join(decoded_lines(path))
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "data" in whole:
        paragraphs = [one for article in whole["data"] for one in article["paragraphs"]]
        asked = [(one["context"], question) for one in paragraphs for question in one["qas"]]
        for i, (context, one) in enumerate(asked, 1):
            answers = () if one.get("is_impossible") else one["answers"]
            found = tuple((answer["text"], answer["answer_start"]) for answer in answers)
            yield _span(one["question"], context, found, f"{path}, question {i}")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            values = _object(line, where)
            try:
                answers = values["answers"]
                pairs = tuple(zip(answers["text"], answers["answer_start"], strict=True))
                question, context = values["question"], values["context"]
            except (KeyError, TypeError, ValueError):
                raise Invalid(
                    f"{where}: needs question, context and answers with text and answer_start"
                ) from None
            yield _span(question, context, pairs, where)


def _span(question: str, context: str, answers: tuple[tuple[str, int], ...], where: str) -> Span:
    for name, text in (("question", question), ("context", context)):
        if not text.strip():
            raise Invalid(f"{where}: an empty {name}; remove it")
    for text, start in itertools.islice(answers, 1):
        if context[start : start + len(text)] != text:
            raise Invalid(f"{where}: the context has no {text!r} at character {start}")
    return Span(question, context, answers, where)
