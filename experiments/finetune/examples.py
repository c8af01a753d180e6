"""Labelled examples from files of the common shapes."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.data.lines import decoded_lines, read_blocks
from attnlab.runs.errors import Invalid


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
    others: dict[str, Callable[[Path], Iterable[Example]]] = {"tag": _read_tagged, "span": _spans}
    examples = list(_read_classified(path, columns) if task == "classify" else others[task](path))
    if not examples:
        raise Invalid(f"{path}: there are no examples in it; give a file with some")
    return examples


def _read_classified(path: Path, columns: Sequence[str]) -> Iterator[Classified]:
    names: Sequence[str] = ()
    for number, values in _records(path, columns):
        where = f"{path}, line {number}"
        names = names or _choose_columns(values, columns, where)
        missing = [name for name in names if name not in values]
        if missing:
            raise Invalid(f"{where}: no {missing[0]!r}; it has {', '.join(values)}")
        for name in names:
            value = values[name]
            is_number = isinstance(value, (int, float)) and value == value  # not NaN
            if not (is_number or _is_text(value)):
                raise Invalid(
                    f"{where}: {name!r} is {json.dumps(value)[-40:]}, not a text of whole "
                    "characters or a number"
                )
        texts = [str(values[name]).strip() for name in names[:-1]]
        label = str(values[names[-1]]).strip()
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
            twice = [name for name in header if header.count(name) > 1]
            if named := [name for name in twice if name in columns or not columns]:
                raise Invalid(
                    f"{path}, line {number}: two columns are called {named[0]!r}; name them apart"
                )
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


def _is_text(value: Any) -> bool:
    """Whether it is a text without half a character, which JSON may have: a cut emoji."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _choose_columns(values: Mapping[str, Any], columns: Sequence[str], where: str) -> Sequence[str]:
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


def _read_tagged(path: Path) -> Iterator[Tagged]:
    columns = None
    for number, block in read_blocks(path):
        lines = [
            # Other blanks, as those that do not break a line, are inside of words.
            (at, re.split("\t" if "\t" in line else " +", line.strip("\t ")))
            for at, line in enumerate(block, number)
            if not line.startswith("-DOCSTART-")
        ]
        for at, cells in lines:
            columns = columns or len(cells)
            if len(cells) < 2 or not cells[-1].strip():
                raise Invalid(f"{path}, line {at}: a word without a tag")
            if len(cells) != columns:
                raise Invalid(
                    f"{path}, line {at}: {len(cells)} columns, and the first word has {columns}; "
                    "put tabs between them where a word has blanks"
                )
        if lines:
            words, tags = zip(*((cells[0], cells[-1]) for _, cells in lines), strict=True)
            yield Tagged(words, tags, f"{path}, line {lines[0][0]}")


def _spans(path: Path) -> Iterator[Span]:
    """The questions of a file, which has them in paragraphs of articles."""
    number = 1
    try:
        for article in json.loads("\n".join(decoded_lines(path)))["data"]:
            for paragraph in article["paragraphs"]:
                for one in paragraph["qas"]:
                    answers = () if one.get("is_impossible") else one["answers"]
                    pairs = tuple((answer["text"], answer["answer_start"]) for answer in answers)
                    where = f"{path}, question {number}"
                    yield _span(one["question"], paragraph["context"], pairs, where)
                    number += 1
    except Invalid:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Invalid(
            f"{path}, question {number}: needs question, context and answers with text and "
            "answer_start, in the qas of the paragraphs of data"
        ) from None


def _span(question: Any, context: Any, answers: tuple[tuple[Any, Any], ...], where: str) -> Span:
    for name, text in (("question", question), ("context", context)):
        if not _is_text(text):
            raise Invalid(f"{where}: {name} is {text!r}, not a text of whole characters")
        if not text.strip():
            raise Invalid(f"{where}: an empty {name}; remove it")
    for text, start in answers:
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            raise Invalid(
                f"{where}: an answer is {text!r} at {start!r}; give a text and the number of its "
                "first character"
            )
    for text, start in itertools.islice(answers, 1):
        if context[start : start + len(text)] != text:
            raise Invalid(f"{where}: the context has no {text!r} at character {start}")
    return Span(question, context, answers, where)
