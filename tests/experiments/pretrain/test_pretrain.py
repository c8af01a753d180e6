"""Pre-training of a tiny model, and what `finetune` makes of it."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from attnlab.data.tokenizers import Bytes
from attnlab.runs import loop
from attnlab.runs.errors import Invalid
from attnlab.training import pretrained
from attnlab.training.pretrained import BertSizes, Pretrained
from experiments.finetune import __main__ as finetune
from experiments.pretrain import __main__ as pretrain
from experiments.pretrain.settings import PRESETS, Settings
from tests.experiments.tiny import run, save_nothing

TEXT = "\n\n".join("\n".join(f"ab{d} cd ef{i} gh" for i in range(4)) for d in range(20)) + "\n"
SIZES = ("--num_layers=1", "--width=8", "--hidden=8", "--num_heads=2")
TINY = (*SIZES, "--attention=window-4", "--tokenizer=bytes", "--length=24", "--steps=4",
        "--warmup_steps=1", "--batch_size=4", "--validate_every=2", "--log_every=2")  # fmt: skip
TUNED = ("--made=order", "--train_examples=16", "--test_examples=4", "--held_out=0.3", "--steps=2",
         "--batch_size=4")  # fmt: skip


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(loop.figure_files, "save", save_nothing)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return path


def folder_of(where):
    (found,) = where.iterdir()
    return found


def rows_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def pretraining(text, tmp_path_factory):
    where = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.figure_files, "save", save_nothing)
        flags = (*TINY, f"--input={text}", f"--output_dir={where}", f"--cache_dir={where}/cache")
        status, out, err = run(pretrain, *flags, "--objective=mlm_nsp,mlm", "--seeds=0,1")
    assert status == 0, err
    return next(path for path in where.iterdir() if path.name.startswith("pretrain"))


def test_every_objective_is_trained_with_every_seed(pretraining):
    rows = rows_of(pretraining)
    assert [(row["objective"], row["seed"]) for row in rows] == [
        ("mlm_nsp", 0), ("mlm_nsp", 1), ("mlm", 0), ("mlm", 1)
    ]  # fmt: skip
    report = (pretraining / "report.md").read_text()
    assert "mlm_nsp, 80/10/10" in report and "What was masked" in report
    # The two objectives read the same batches.
    assert rows[0]["shares"] == rows[2]["shares"] and rows[0]["shares"] != rows[1]["shares"]


def test_a_run_that_is_cut_off_comes_to_the_same_numbers(pretraining, text, tmp_path):
    flags = (*TINY, f"--input={text}", "--cache_dir", tmp_path / "cache")
    steps = pretraining / "mlm_nsp-80-10-10-seed1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "write", interrupted)
        status, *_ = run(pretrain, *flags, "--output_dir", tmp_path / "run", "--seeds=1")
    assert status == 130
    status, *_ = run(pretrain, "--resume", folder := folder_of(tmp_path / "run"))
    assert status == 0
    ours, theirs = (pretrained.read(x)[0] for x in (folder, steps))
    assert ours.seed == theirs.seed == 1
    for a, b in zip(*(jax.tree.leaves(one.params) for one in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)


def interrupted(*_):
    raise KeyboardInterrupt


def test_it_goes_on_from_another_run(pretraining, text, tmp_path):
    flags = (*TINY, f"--input={text}", f"--init_from={pretraining / 'mlm-80-10-10-seed0'}")
    flags += ("--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / "run")
    status, _, err = run(pretrain, *flags, "--learning_rate=1e-30")
    assert status == 0, err
    (after,) = pretrained.read(folder_of(tmp_path / "run"))
    (before,) = pretrained.read(pretraining / "mlm-80-10-10-seed0")
    for a, b in zip(*(jax.tree.leaves(one.params) for one in (after, before)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for changed, said in (
        ("--tokenizer=sentencepiece", "a checkpoint of another vocabulary, bytes of 260 ids"),
        ("--hidden=9", "give its sizes, with --max_length"),
    ):
        status, _, err = run(pretrain, *flags, changed)
        assert status == 2 and said in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--input: give a file of text"),
        (("--masking=80/10/20",), "--masking=80/10/20: give percents"),
        (("--length=24", "--max_length=20"), "pairs are longer than the model's --max_length=20"),
        (("--warmup_steps=4", "--steps=4"), "must be fewer than --steps=4"),
        (
            ("--attention=lsh",),
            "--attention=lsh: no attention 'lsh'; valid: exact, window-R, ",
        ),
        (("--num_heads=3",), "--width=64 --num_heads=3: give heads that divide it"),
        (("--seeds=1,1",), "--seeds=1,1: give each once"),
        (("--num_workers=2",), "--num_workers=2: pairs are drawn here"),
    ],
)
def test_flags_that_cannot_be_meant(text, flags, said):
    given = (f"--input={text}", *flags) if flags else ()
    status, _, err = run(pretrain, *given)
    assert status == 2 and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [("\n \n", "there is no document in it"), ("a\nb\n", "two documents and one of two lines")],
)
def test_texts_without_documents(tmp_path, content, said):
    (tmp_path / "text").write_text(content)
    flags = (*TINY, f"--input={tmp_path}/text", f"--cache_dir={tmp_path}")
    status, _, err = run(pretrain, *flags, f"--output_dir={tmp_path}/run")
    assert status == 2 and said in err


def test_presets_are_possible():
    for name, preset in PRESETS.items():
        assert Settings(input="x", **preset).sizes().max_length >= 64, name


class TestFinetune:
    def flags(self, text, tmp_path, *flags):
        places = (f"--cache_dir={tmp_path}/cache", f"--output_dir={tmp_path}/run")
        return (*TUNED, f"--input={text}", *places, *flags)

    def test_each_model_is_trained_beside_one_from_scratch(self, pretraining, text, tmp_path):
        starts = "--starts=tuned,frozen,scratch"
        flags = self.flags(text, tmp_path, f"--init_from={pretraining}", starts, "--seeds=0,1")
        status, _, err = run(finetune, *flags)
        assert status == 0, err
        folder = folder_of(tmp_path / "run")
        rows = rows_of(folder)
        assert len(rows) == 2 * (2 + 2 + 1)
        assert {row["title"] if "title" in row else row["start"] for row in rows} == {
            "tuned", "frozen", "scratch"
        }  # fmt: skip
        report = (folder / "report.md").read_text()
        assert "tuned: mlm_nsp, 80/10/10 − scratch" in report and "Not done yet" not in report

    def test_a_tuned_model_starts_with_what_was_learnt(self, pretraining, text, tmp_path):
        flags = self.flags(text, tmp_path, f"--init_from={pretraining}", "--starts=frozen")
        status, _, err = run(finetune, *flags, "--learning_rate=1e-30")
        assert status == 0, err
        one = pretrained.read(pretraining / "mlm-80-10-10-seed0")[0]
        kept = one.encoder({"bert": None, "classes": 1})
        assert kept["classes"] == 1
        for a, b in zip(*map(jax.tree.leaves, (kept["bert"], one.params["bert"])), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_other_vocabularies_are_refused(self, pretraining, text, tmp_path):
        one = pretrained.read(pretraining / "mlm-80-10-10-seed0")[0]
        other = tmp_path / "other"
        other.mkdir()
        sizes = dataclasses.replace(one.sizes, attention="window-3")
        pretrained.write(dataclasses.replace(one, sizes=sizes), other)
        both = f"--init_from={pretraining / 'mlm-80-10-10-seed0'},{other}"
        status, _, err = run(finetune, *self.flags(text, tmp_path, both))
        assert status == 2 and "a checkpoint of another vocabulary, or of other sizes" in err
        params = {**one.params, "bert": {**one.params["bert"]}}
        params["bert"]["vocabulary"] = {"embedding": np.zeros((7, 8), np.float32)}
        pretrained.write(dataclasses.replace(one, params=params), other)
        with pytest.raises(Invalid, match="another vocabulary: 7 ids, and its tokenizer has 261"):
            pretrained.read(other)
        with pytest.raises(Invalid, match=r"no pretrained.json there; give a folder"):
            pretrained.read(text.parent)

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ((), "give --train_file and --dev_file, or --made=TASK"),
            (("--made=order",), "--made=order: needs --input"),
            (("--made=order", "--input=x", "--train_file=x"), "makes the examples; leave it out"),
            (("--train_file=x", "--dev_file=x", "--starts=tuned"), "needs --init_from"),
            (("--train_file=x", "--dev_file=x", "--columns=a"), "--columns=a: of classify, give"),
            (("--train_file=x", "--dev_file=x", "--held_out=0.2"), "--held_out=0.2: needs --made"),
            (("--train_file=x", "--dev_file=x", "--init_from=x", "--width=8"), "leave it out"),
        ],
    )
    def test_flags_that_cannot_be_meant(self, flags, said):
        status, _, err = run(finetune, *flags)
        assert status == 2 and said in err and err.count("\n") == 1

    @pytest.mark.parametrize("task", ["tag", "span"])
    def test_files_of_other_tasks_train_too(self, tmp_path, task):
        span = {"question": "Q", "context": "a bc d", "answers": {"text": ["bc"],
                                                                  "answer_start": [2]}}  # fmt: skip
        text = {"tag": "ab O\ncd B-X\n\nef O\n", "span": json.dumps(span) + "\n"}[task]
        (tmp_path / "train").write_text(text)
        flags = (f"--task={task}", f"--train_file={tmp_path}/train", f"--dev_file={tmp_path}/train",
                 *SIZES, "--tokenizer=bytes", "--max_length=16", "--steps=1", "--batch_size=2",
                 f"--cache_dir={tmp_path}/cache", f"--output_dir={tmp_path}/run")  # fmt: skip
        status, _, err = run(finetune, *flags)
        assert status == 0, err
        (row,) = rows_of(folder_of(tmp_path / "run"))
        assert list(row["scores"])[0] == "f1"


def test_sizes_build_what_they_say():
    sizes = BertSizes(2, 8, 8, 2, 16, attention="window-2+lsh-3")
    assert sizes.streams == ("dropout", "hash")
    _, (window, lsh) = sizes.build(9)
    assert (window.route.left, window.route.right, lsh.route.num_hashes) == (2, 2, 3)
    made = Pretrained("x", 0, sizes, Bytes())
    assert made.vocab_size == 261


def test_subwords_are_kept_with_their_model(tmp_path):
    lines = TEXT.split("\n")
    tokenizer = pretrained.make_tokenizer(
        "sentencepiece", lines, vocab_size=40, cache_dir=str(tmp_path / "cache")
    )
    params = {"bert": {"vocabulary": {"embedding": np.ones((41, 8), np.float32)}}}
    made = Pretrained("x", 3, BertSizes(1, 8, 8, 2, 16), tokenizer, params)
    pretrained.write(made, tmp_path)
    (found,) = pretrained.read(tmp_path)
    assert (found.title, found.seed, found.sizes) == ("x", 3, made.sizes)
    assert found.tokenizer.digest == tokenizer.digest and found.vocab_size == 41
    assert found.tokenizer.encode(lines[0]) == tokenizer.encode(lines[0])
    np.testing.assert_array_equal(found.params["bert"]["vocabulary"]["embedding"], np.ones((41, 8)))
    (tmp_path / "params.npz").write_bytes(b"")
    with pytest.raises(Invalid, match="its files cannot be read"):
        pretrained.read(tmp_path)
