"""Lines of text files: what can be wrong with them, each said in one line."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from attnlab.runs.errors import Invalid, of_system

Row = dict[str, str]
GZIP = b"\x1f\x8b"  # what a packed file begins with
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_pairs(source: Path, target: Path) -> Iterator[Row]:
    """Yields {"source", "target"} of two files whose lines are translations of each other."""
    counts = [sum(1 for _ in raw_lines(path)) for path in (source, target)]
    if counts[0] != counts[1]:
        raise Invalid(
            f"{source} has {counts[0]} lines and {target} has {counts[1]}; line i of one must be "
            "the translation of line i of the other"
        )
    sides = zip(decoded_lines(source), decoded_lines(target), strict=True)
    for number, (source_line, target_line) in enumerate(sides, 1):
        for path, line in ((source, source_line), (target, target_line)):
            if not line.strip():
                raise Invalid(f"{path}, line {number} is empty; remove it from both files")
        yield {"source": source_line, "target": target_line}


def read_tsv(path: Path) -> Iterator[Row]:
    """Yields {"source", "target"} of a file with the two in each line, separated by a tab."""
    for number, line in enumerate(decoded_lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            rule = "must have 2 columns, source and target, with a tab between"
            raise Invalid(f"{path}, line {number}: {rule}; got {len(columns)}")
        if not all(column.strip() for column in columns):
            raise Invalid(f"{path}, line {number} has an empty column; remove the line")
        yield dict(zip(("source", "target"), columns, strict=True))


def read_blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields blocks of lines that are not empty, and the number of the first line of each."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(decoded_lines(path), 1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []
    if block:
        yield number + 1 - len(block), block


def read_documents(path: Path, held_out: float) -> tuple[list[list[str]], list[list[str]]]:
    """The documents of a text, lines with blank ones between documents: to train on, and held out.

    Args:
      path: path of the text.
      held_out: share of the documents, the last ones, of which at least one is held out.

    Raises:
      Invalid: there are fewer than two documents.
    """
    documents = [lines for _, lines in read_blocks(path)]
    if len(documents) < 2:
        raise Invalid(
            f"{path}: documents have a blank line between them, and two are needed; got "
            f"{len(documents)}"
        )
    last = max(1, round(held_out * len(documents)))
    return documents[:-last], documents[-last:]


def decoded_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, without their ends."""
    for number, raw in enumerate(raw_lines(path), 1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            encoding = "UTF-16" if number == 1 and raw.startswith(_UTF16) else "LATIN1"
            raise Invalid(
                f"{path}, line {number}: not UTF-8, byte {error.object[error.start]:#04x} in "
                f"column {error.start + 1}; convert the file, as with iconv -f {encoding} -t UTF-8"
            ) from error


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, which is unpacked if it is one of gzip.

    Only a line feed ends a line. Unicode has other separators, which str.splitlines would obey and
    which are inside of sentences in real corpora, so that one file has more lines than the other.
    """
    try:
        with path.open("rb") as file:
            is_packed = path.suffix == ".gz" or file.peek(2)[:2] == GZIP
            yield from gzip.GzipFile(fileobj=file) if is_packed else file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Invalid(f"{path} is damaged, or not a gzip file: {error}") from error
    except OSError as error:
        raise Invalid(f"{of_system(error)}; give a text file") from error
