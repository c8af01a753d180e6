import gzip
import os
import signal
import subprocess
import sys

import pytest

from attnlab.data import files
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


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_aligned_files_are_read_in_order(write, cache):
    source, target = write("a.de.gz", GERMAN), write("a.en", ENGLISH, end="\r\n")
    pairs = open_text(source, target, cache_dir=cache)
    assert [pairs[i] for i in range(len(pairs))] == PAIRS
    part = open_text(str(source), str(target), split="train[1:]", cache_dir=cache)
    assert [part[i] for i in range(len(part))] == PAIRS[1:]


def test_a_file_of_two_columns(write, cache):
    rows = [f"{pair['source']}\t{pair['target']}" for pair in PAIRS]
    pairs = open_text(write("a.tsv", b"\xef\xbb\xbf" + "\n".join(rows).encode()), cache_dir=cache)
    assert [pairs[i] for i in range(len(pairs))] == PAIRS


def test_no_temporary_folder_is_left(write, cache, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    open_text(write("a.de", GERMAN), write("a.en", ENGLISH), cache_dir=cache)
    assert not list(temporary.iterdir())


def test_files_are_prepared_once_and_by_content(write, cache, monkeypatch):
    source, target = write("a.de", GERMAN), write("a.en", ENGLISH)
    open_text(source, target, cache_dir=cache)
    (folder,) = cache.iterdir()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with monkeypatch.context() as patch:
        patch.setattr(files, "prepare", None)  # calling it would fail
        copies = write("b.de", GERMAN), write("b.en", ENGLISH)
        pairs = open_text(*copies, cache_dir=cache)
        assert [pairs[i] for i in range(len(pairs))] == PAIRS
    write("a.en", ["Two cats.", *ENGLISH[1:]])
    assert open_text(source, target, cache_dir=cache)[0]["target"] == "Two cats."
    assert len(list(cache.iterdir())) == 2
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_an_interrupted_preparation_is_redone(write, cache, tmp_path):
    source, target = write("a.de", GERMAN * 20), write("a.en", ENGLISH * 20)
    script = f"""
import os, signal
from attnlab.data import files
generate = files.TextFiles._generate_examples
def killed(self):
    for i, example in generate(self):
        if i == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        yield i, example
files.TextFiles._generate_examples = killed
files.open_text({str(source)!r}, {str(target)!r}, cache_dir={str(cache)!r})
"""
    (tmp_path / "tmp").mkdir()  # what it had no time to remove
    env = {**os.environ, "PYTHONPATH": ".", "TMPDIR": str(tmp_path / "tmp")}
    run = subprocess.run([sys.executable, "-c", script], env=env)
    assert run.returncode == -signal.SIGKILL
    assert list(cache.rglob("*incomplete*"))
    pairs = open_text(source, target, cache_dir=cache)
    assert [pairs[i] for i in range(len(pairs))] == PAIRS * 20


def test_one_that_another_process_prepares_meanwhile(write, cache, monkeypatch):
    source, target = write("a.de", GERMAN), write("a.en", ENGLISH)
    generate = files.TextFiles._generate_examples

    def slowly(builder):
        monkeypatch.setattr(files.TextFiles, "_generate_examples", generate)
        open_text(source, target, cache_dir=cache)  # the other one
        yield from generate(builder)

    monkeypatch.setattr(files.TextFiles, "_generate_examples", slowly)
    assert open_text(source, target, cache_dir=cache)[0] == PAIRS[0]
    assert [path.name for path in cache.glob("*/*")] == ["1.0.0"]


BAD = {
    "lines": (b"a\nb\nc\n", b"a\nb", r"a\.de has 3 lines and .*a\.en has 2; line i of one must"),
    "empty": (b"a\nb\n", b"a\n \n", r"a\.en, line 2 is empty; remove it from both files"),
    "bytes": (b"a\nMu\xdfte\n", b"a\nb\n", r"a\.de, line 2: not UTF-8, byte 0xdf in column 3; con"),
    "first": (b"\xef\xbb\xbfab\xff\n", b"a\n", r"a\.de, line 1: not UTF-8, byte 0xff in column 3"),
    "nothing": (b"", b"", r"there is no text in .*a\.de and .*a\.en"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_wrong_with_pairs_is_said_in_one_line(write, cache, bad):
    source, target, message = BAD[bad]
    with pytest.raises(Invalid, match=message) as error:
        open_text(write("a.de", source), write("a.en", target), cache_dir=cache)
    assert "\n" not in str(error.value)
    assert not cache.exists()  # nothing is left behind


def test_what_is_wrong_with_other_files_is_said_in_one_line(write, cache, tmp_path):
    text = write("a.en", ENGLISH)
    with pytest.raises(Invalid, match=r"gone\.de: No such file or directory; give a text file$"):
        open_text(tmp_path / "gone.de", text, cache_dir=cache)
    with pytest.raises(Invalid, match=r": Is a directory; give a text file$"):
        open_text(tmp_path, cache_dir=cache)
    with pytest.raises(Invalid, match=r"a\.tsv, line 2: must be source, tab, target; got 3 col"):
        open_text(write("a.tsv", b"a\tb\na\tb\tc\n"), cache_dir=cache)
    with pytest.raises(Invalid, match=r"line 1: must be source, tab, target; got 1 column$"):
        open_text(write("a.tsv", b"ab\n"), cache_dir=cache)
    with pytest.raises(Invalid, match=r"a\.tsv, line 1 has an empty column; remove the line"):
        open_text(write("a.tsv", b"a\t\n"), cache_dir=cache)
    with pytest.raises(Invalid, match=r"byte 0xff in column 1; convert .* iconv -f UTF-16 -t"):
        open_text(write("a.tsv", "a\tb\n".encode("utf-16")), cache_dir=cache)
    packed = write("a.gz", [f"{line}\t{line}" for line in ENGLISH])
    unnamed = write("packed", packed.read_bytes())
    assert list(open_text(unnamed, cache_dir=cache)) == list(open_text(packed, cache_dir=cache))
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(Invalid, match=r"a\.gz is damaged, or not a gzip file: "):
        open_text(packed, cache_dir=cache)
    packed.write_bytes(b"plain")
    with pytest.raises(Invalid, match=r"a\.gz is damaged, or not a gzip file: Not a gzipped"):
        open_text(packed, cache_dir=cache)
    with pytest.raises(Invalid, match=r"cannot write to the cache folder .*a\.en.*name another"):
        open_text(write("a.tsv", b"a\tb\n"), cache_dir=text)
