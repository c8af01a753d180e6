"""Pre-training of a tiny model from end to end."""

import shutil

import pytest

from attnlab.runs import loop
from attnlab.training import pretrained
from attnlab.training.curve import read_metrics
from experiments.pretrain import __main__ as pretrain
from tests.experiments.tiny import TEXT, folder_of, rows_of, run, save_nothing
from tests.trees import assert_close

pytestmark = pytest.mark.usefixtures("no_figures")
TINY = ("--num_layers=1", "--width=8", "--hidden=8", "--num_heads=2", "--attention=window-4",
        "--tokenizer=bytes", "--length=24", "--steps=4", "--warmup_steps=1", "--batch_size=4",
        "--validate_every=2", "--log_every=2")  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return path


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
    cells = [(row["cell"]["axes"]["objective"], row["cell"]["seed"]) for row in rows]
    assert cells == [("mlm_nsp", 0), ("mlm", 0), ("mlm_nsp", 1), ("mlm", 1)]
    kept = {(one.title, one.seed) for one in pretrained.read(pretraining)}
    assert kept == {(f"{objective}, 80/10/10", seed) for objective, seed in cells}
    assert rows[0]["scores"].keys() - rows[1]["scores"].keys() == {"pair accuracy"}
    for objective in ("mlm_nsp", "mlm"):  # whether the loss has a second part
        (where,) = pretraining.glob(f"{objective}-*seed0")
        row = read_metrics(where)[-1]
        assert (row["loss"] > row["masked_nll"]) == (objective == "mlm_nsp")
    shares = [row["details"]["shares"] for row in rows]
    assert shares[0] == shares[1] != shares[2]  # the two objectives read the same batches


def test_it_goes_on_from_another_run(pretraining, text, tmp_path):
    flags = (*TINY, f"--input={text}", f"--init_from={pretraining / 'mlm-80-10-10-seed0'}")
    flags += ("--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / "run")
    status, _, err = run(pretrain, *flags, "--learning_rate=1e-30")
    assert status == 0, err
    runs = folder_of(tmp_path / "run"), pretraining
    inputs = [rows_of(place)[0]["environment"]["input"] for place in runs]
    assert len({one["sha256"] for one in inputs}) == 2  # of one text, but of other starts
    (after,) = pretrained.read(folder_of(tmp_path / "run"))
    (before,) = pretrained.read(pretraining / "mlm-80-10-10-seed0")
    assert_close(after.params, before.params, atol=1e-6)
    for seed in (0, 1):
        name = f"mlm-80-10-10-seed{seed}"
        shutil.copytree(pretraining / name, tmp_path / "mlm" / name)
    other_seed = ("--seeds=0,1,2", f"--init_from={tmp_path / 'mlm'}")
    status, _, err = run(pretrain, *flags, *other_seed)
    assert status == 2 and f"--init_from={tmp_path / 'mlm'}: " in err and "seed 2" in err
    for changed, said in (
        (f"--init_from={pretraining}", "both have seed 0; give the folder of one"),
        ("--tokenizer=sentencepiece", "a checkpoint of another vocabulary, bytes of 260 ids"),
        ("--hidden=9", "give its sizes, with --max_length"),
    ):
        status, _, err = run(pretrain, *flags, changed)
        assert status == 2 and said in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n \n", "and two are needed; got 0"),
        ("a\nb\n", "have a blank line between them, and two are needed; got 1"),
    ],
)
def test_texts_without_documents(tmp_path, content, said):
    (tmp_path / "text").write_text(content)
    flags = (*TINY, f"--input={tmp_path}/text", f"--cache_dir={tmp_path}")
    status, _, err = run(pretrain, *flags, f"--output_dir={tmp_path}/run")
    assert status == 2 and said in err
