import gzip

import pytest

from attnlab.data.files import open_text
from attnlab.runs.errors import Invalid

GERMAN = ["Zwei Hunde.", "Ein Mädchen\u2028lacht.", "Drei"]
ENGLISH = ["Two dogs.", "A girl laughs.", "Three"]
PAIRS = [{"source": s, "target": t} for s, t in zip(GERMAN, ENGLISH, strict=True)]


@pytest.fixture
def write(tmp_path):
    def write(name, lines, end="\n"):
        content = lines if isinstance(lines, bytes) else "".join(x + end for x in lines).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


def test_aligned_files_are_read_in_order(write):
    source, target = write("a.de.gz", GERMAN), write("a.en", ENGLISH, end="\r\n")
    assert open_text(source, str(target)) == PAIRS


def test_a_file_of_two_columns(write):
    rows = [f"{pair['source']}\t{pair['target']}" for pair in PAIRS]
    assert open_text(write("a.tsv", b"\xef\xbb\xbf" + "\n".join(rows).encode())) == PAIRS


BAD = {
    "lines": (b"a\nb\nc\n", b"a\nb", r"a\.de has 3 lines and .*a\.en has 2; line i of one must"),
    "empty": (b"a\nb\n", b"a\n \n", r"a\.en, line 2 is empty; remove it from both files"),
    "bytes": (b"a\nMu\xdfte\n", b"a\nb\n", r"a\.de, line 2: not UTF-8, byte 0xdf in column 3; con"),
    "first": (b"\xef\xbb\xbfab\xff\n", b"a\n", r"a\.de, line 1: not UTF-8, byte 0xff in column 3"),
    "nothing": (b"", b"", r"there is no text in .*a\.de and .*a\.en"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_wrong_with_pairs_is_said_in_one_line(write, bad):
    source, target, message = BAD[bad]
    with pytest.raises(Invalid, match=message) as error:
        open_text(write("a.de", source), write("a.en", target))
    assert "\n" not in str(error.value)


def test_what_is_wrong_with_other_files_is_said_in_one_line(write, tmp_path):
    text = write("a.en", ENGLISH)
    with pytest.raises(Invalid, match=r"gone\.de: No such file or directory; give a text file$"):
        open_text(tmp_path / "gone.de", text)
    with pytest.raises(Invalid, match=r": Is a directory; give a text file$"):
        open_text(tmp_path)
    with pytest.raises(Invalid, match=r"a\.tsv, line 2: must have 2 columns, .*; got 3"):
        open_text(write("a.tsv", b"a\tb\na\tb\tc\n"))
    with pytest.raises(
        Invalid, match=r"line 1: must have 2 columns, source and target, .*; got 1$"
    ):
        open_text(write("a.tsv", b"ab\n"))
    with pytest.raises(Invalid, match=r"a\.tsv, line 1 has an empty column; remove the line"):
        open_text(write("a.tsv", b"a\t\n"))
    with pytest.raises(Invalid, match=r"byte 0xff in column 1; convert .* iconv -f UTF-16 -t"):
        open_text(write("a.tsv", "a\tb\n".encode("utf-16")))
    packed = write("a.gz", [f"{line}\t{line}" for line in ENGLISH])
    unnamed = write("packed", packed.read_bytes())
    assert open_text(unnamed) == open_text(packed)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(Invalid, match=r"a\.gz is damaged, or not a gzip file: "):
        open_text(packed)
    packed.write_bytes(b"plain")
    with pytest.raises(Invalid, match=r"a\.gz is damaged, or not a gzip file: Not a gzipped"):
        open_text(packed)
