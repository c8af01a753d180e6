"""What a host encodes and writes: the counting of it, not its speed."""

import json

import pytest

from attnlab.data.dates import Dates
from attnlab.data.tokenizers import Bytes
from attnlab.runs.errors import Invalid
from experiments.host_speed import __main__ as host_speed
from experiments.host_speed.__main__ import Checkpoint, Corpus, Encoding
from experiments.host_speed.settings import POOL, Settings


def test_a_run_leaves_its_rows_and_no_checkpoint(tmp_path, capsys):
    flags = "--num_workers=0 --batch_size=3 --pairs=200 --mib=1 --repeats=2"
    assert host_speed.main(["", *flags.split(), f"--output_dir={tmp_path}"]) == 0
    (folder,) = tmp_path.iterdir()
    names = ["report.md", "results.jsonl", "settings.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    lines = filter(None, (folder / "results.jsonl").read_text().splitlines())
    encoding, checkpoint = map(json.loads, lines)
    assert encoding["pairs"] == 2 * POOL * 3 and encoding["seconds"] > 0
    assert encoding["load"] >= 0
    assert len(checkpoint["written"]) == len(checkpoint["read"]) == 2
    assert "dates, byte by byte" in (folder / "report.md").read_text()
    assert "pairs/s" in capsys.readouterr().out
    line = json.dumps(
        encoding | {"environment": encoding["environment"] | {"input": {"sha256": "0"}}}
    )
    (folder / "results.jsonl").write_text(f"{line}\n")
    assert host_speed.main(["", f"--resume={folder}"]) == 2
    assert "is about another text than dates is now" in capsys.readouterr().err


def test_as_many_pools_are_encoded_as_are_timed(monkeypatch):
    read = []

    class Counted(Dates):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    clock = iter((10.0, 14.0))
    monkeypatch.setattr(host_speed.time, "perf_counter", lambda: next(clock))
    corpus = Corpus(Counted(size=1000), Bytes())
    found = host_speed.encode(corpus, Settings(batch_size=3, pairs=300), 0)
    assert found.pairs == 4 * POOL * 3 and found.seconds == 4.0 and found.rate == 60.0
    assert len(read) == len({*read}) >= 5 * POOL * 3
    assert found.tokens > 2 * found.pairs


def test_the_tables_are_of_medians():
    text = host_speed.tables(
        [Encoding(0, 600, 3000, 2.0), Checkpoint(512, (1.0, 9.0, 2.0), (0.5,), 1.25)]
    )
    squeezed = " ".join(text.split())
    assert "| a thread | 300 | 1,500 | 600 | |" in squeezed
    assert "| 512 MiB | 2.00 s | 4.00 s | 500 ms | 1.00 s | 1.2 |" in squeezed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--pairs=5119", "--pairs=5119 is too small; give at least 5120, two pools of 20 batches"),
        ("--vocab_size=7", "--vocab_size counts for nothing without --data_files; leave it out"),
        ("--cache_dir=c", "--cache_dir counts for nothing without --data_files; leave it out"),
        ("--data_files=/no/such/file", "--data_files=/no/such/file: there is no such file"),
    ],
)
def test_bad_flags_end_in_one_line(flags, message, capsys, tmp_path):
    assert host_speed.main(["", *flags.split(), f"--output_dir={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_what_is_not_there_is_said(monkeypatch, tmp_path):
    with pytest.raises(Invalid, match="--pairs=20000: there are 7, and none is encoded twice"):
        host_speed.encode(Corpus(Dates(size=7), Bytes()), Settings(), 0)
    usage = host_speed.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(host_speed.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Invalid, match="--mib=4: .* has 100 B free"):
        host_speed.checkpoint(4, tmp_path, 1)


@pytest.mark.parametrize("lacks", ["pairs", "mib"])
def test_what_cannot_be_measured_is_refused_before_a_folder_is_made(
    lacks, monkeypatch, tmp_path, capsys
):
    few = Corpus(Dates(size=7 if lacks == "pairs" else 10**6), Bytes())
    monkeypatch.setattr(host_speed, "open_corpus", lambda _: few)
    usage = host_speed.shutil.disk_usage(tmp_path)._replace(free=100 if lacks == "mib" else 2**40)
    monkeypatch.setattr(host_speed.shutil, "disk_usage", lambda _: usage)
    assert host_speed.main(["", f"--output_dir={tmp_path}/a/b"]) == 2
    assert f"--{lacks}=" in capsys.readouterr().err and not list(tmp_path.iterdir())
