"""A run goes on with the data that it began with: one mean is never of two data sets."""

import importlib
import json

import pytest

from attnlab.runs import loop
from tests.experiments.test_reports import RESULTS
from tests.experiments.tiny import TEXT, run

PAIRS = "".join(f"Hund {i} bellt\tdog {i} barks\n" for i in range(30))
LABELLED = "pos\tababab\nneg\tyzyzyz\n" * 12
SENTENCES = "sentence\tlabel\n" + "ababab\tpos\nyzyzyz\tneg\n" * 12
OTHER = {TEXT: "\n\nmore of\nthis\n", PAIRS: "Katze\tcat\n"} | {
    LABELLED: "neg\tzzz\n", SENTENCES: "zzz\tneg\n"
}  # fmt: skip
# Of each experiment kept rows, a text, and the flags that have files of it; the last one changes.
CASES = {
    "finetune": ("finetune_spelling", SENTENCES, ("train_file", "dev_file", "test_file")),
    "long_range": ("long_range", LABELLED, ("train_file", "test_file")),
    "pretrain": ("pretrain", TEXT, ("input",)),
    "translate": ("translate_dates", PAIRS, ("data_files", "validation_files", "test_files")),
}
OTHERS = {"finetune": ("--tokenizer=bytes",), "long_range": ("--tasks=text",),
          "translate": ("--vocab_size=40",)}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_refuses_other_data(name, tmp_path, monkeypatch):
    kept, text, flags = CASES[name]
    experiment = importlib.import_module(f"experiments.{name}.__main__")
    row = json.loads((RESULTS / "cpu" / kept / "results.jsonl").read_text().splitlines()[0])

    def one_row(job, items, folder, rows, where):
        folder.begin()
        folder.append(row | {"environment": rows.environment})
        return 0

    monkeypatch.setattr(loop, "run", one_row)
    paths = [tmp_path / f"{flag}.tsv" for flag in flags]
    for path in paths:
        path.write_text(text)
    given = [f"--{flag}={path}" for flag, path in zip(flags, paths, strict=True)]
    cache = [f"--cache_dir={tmp_path}/cache"] if name != "long_range" else []
    place = f"{tmp_path}/run"
    status, _, err = run(experiment, *given, *OTHERS.get(name, ()), *cache, f"--run_dir={place}")
    assert status == 0, err
    assert run(experiment, f"--resume={place}")[0] == 0
    paths[-1].write_text(text + OTHER[text])
    status, _, err = run(experiment, f"--resume={place}")
    assert status == 2 and "is about other data than" in err and err.count("\n") == 1
