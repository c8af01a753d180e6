"""`finetune` from end to end, beginning with models that `pretrain` could have left."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from attnlab.data.tokenizers import Bytes
from attnlab.models.bert import BertPretraining
from attnlab.runs.errors import Invalid
from attnlab.training import pretrained
from attnlab.training.pretrained import BertSizes, Pretrained
from experiments.finetune import __main__ as finetune
from experiments.finetune.data import open_data
from experiments.finetune.settings import Settings
from tests.experiments.tiny import TEXT, folder_of, rows_of, run

pytestmark = pytest.mark.usefixtures("no_figures")
TUNED = ("--made=order", "--train_examples=16", "--test_examples=4", "--held_out=0.3", "--steps=2",
         "--batch_size=4")  # fmt: skip
TITLES = ("mlm_nsp, 80/10/10", "mlm, 80/10/10")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of models as `pretrain` leaves it: two objectives, each with the seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("pretrain")
    sizes = BertSizes(1, 8, 8, 2, 24, attention="window-4")
    tokens = np.zeros((1, 5), np.int32)
    model = BertPretraining(*sizes.build(Bytes().vocab_size + 1))
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, masked=tokens)["params"]
    draw = np.random.default_rng(0)
    for title in TITLES:
        for seed in (0, 1):
            params = jax.tree.map(lambda x: draw.normal(0, 0.02, x.shape).astype(x.dtype), shapes)
            place = folder / f"{title.partition(',')[0]}-{seed}"
            place.mkdir()
            pretrained.write(Pretrained(title, seed, sizes, Bytes(), params), place)
    return folder


def flags_of(text, tmp_path, *flags):
    places = (f"--cache_dir={tmp_path}/cache", f"--output_dir={tmp_path}/run")
    return (*TUNED, f"--input={text}", *places, *flags)


def test_a_model_is_tuned(models, text, tmp_path):
    begins = f"--init_from={models / 'mlm_nsp-1'}", "--starts=tuned", "--seeds=1"
    status, _, err = run(finetune, *flags_of(text, tmp_path, *begins))
    assert status == 0, err
    (row,) = rows_of(folder_of(tmp_path / "run"))
    axes = {"start": "tuned", "pretraining": "mlm_nsp, 80/10/10"}
    assert row["cell"] == {"axes": axes, "seed": 1}


def test_each_seed_begins_with_the_model_of_that_seed(models, text):
    settings = Settings(
        init_from=(str(models),), starts=("tuned", "frozen", "scratch"), seeds=(0, 1), made="order",
        input=str(text), train_examples=16, test_examples=4, held_out=0.3,
    )  # fmt: skip
    study = finetune.Finetune(settings, open_data(settings))
    cells = study.cells()
    assert len(cells) == 2 * (2 + 2 + 1) and {cell.seed for cell in cells} == {0, 1}
    for cell in cells:
        assert study.training(cell).task.model.frozen == (cell["start"] == "frozen")
        start = study.data.start(cell["pretraining"], cell.seed)
        if cell["start"] == "scratch":
            assert start.params is None
        else:
            assert (start.title, start.seed) == (cell["pretraining"], cell.seed)
    fewer = {title: {1: by_seed[1]} for title, by_seed in study.data.models.items()}
    other_starts = dataclasses.replace(study.data, models=fewer)
    assert study.data.digest != other_starts.digest  # so that rows are of one set of starts
    with pytest.raises(Invalid, match="--seeds=2: .* was pre-trained with the seeds 0, 1; give"):
        open_data(dataclasses.replace(settings, seeds=(2,)))


def test_a_tuned_model_starts_with_what_was_learnt(models):
    (one,) = pretrained.read(models / "mlm-0")
    kept = one.encoder({"bert": None, "classes": 1})
    assert kept["classes"] == 1
    jax.tree.map(np.testing.assert_array_equal, kept["bert"], one.params["bert"])


def test_nothing_of_a_frozen_model_moves(models, text):
    """Its weights have no gradient, and no weight decay either; the classifier learns."""
    settings = Settings(
        init_from=(str(models / "mlm-0"),), starts=("frozen",), made="order", input=str(text),
        train_examples=8, test_examples=4, held_out=0.3, steps=2, batch_size=4,
    )  # fmt: skip
    study = finetune.Finetune(settings, open_data(settings))
    (cell,) = study.cells()
    training = study.training(cell)
    optimizer = training.optimizer.build(2)
    params = jax.tree.map(np.ones_like, pretrained.read(models / "mlm-0")[0].params["bert"])
    gradients = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    assert not any(np.any(x) for x in jax.tree.leaves(updates))


def test_rows_are_no_longer_than_a_model_whose_length_is_no_multiple_of_8(text):
    settings = Settings(
        made="order", input=str(text), train_examples=8, test_examples=4, held_out=0.3,
        tokenizer="bytes", num_layers=1, width=8, hidden=8, num_heads=2, max_length=13,
        cut=True,
    )  # fmt: skip
    assert open_data(settings).length == 13


def test_one_label_is_nothing_to_learn(text, tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\nyes\ta b\nyes\tc d\n")
    files = [f"--{split}_file={tmp_path}/a.tsv" for split in ("train", "dev")]
    status, _, err = run(finetune, *files, "--tokenizer=bytes", f"--output_dir={tmp_path}/run")
    assert status == 2 and "training has the label yes alone; give at least two classes" in err


def test_other_vocabularies_are_refused(models, text, tmp_path):
    one = pretrained.read(models / "mlm-0")[0]
    other = tmp_path / "other"
    other.mkdir()
    sizes = dataclasses.replace(one.sizes, attention="window-3")
    pretrained.write(dataclasses.replace(one, sizes=sizes), other)
    both = f"--init_from={models / 'mlm-0'},{other}"
    status, _, err = run(finetune, *flags_of(text, tmp_path, both))
    assert status == 2 and "a checkpoint of another vocabulary, or of other sizes" in err
    params = {**one.params, "bert": {**one.params["bert"]}}
    params["bert"]["vocabulary"] = {"embedding": np.zeros((7, 8), np.float32)}
    pretrained.write(dataclasses.replace(one, params=params), other)
    with pytest.raises(Invalid, match="another vocabulary: 7 ids, and its tokenizer has 261"):
        pretrained.read(other)
    with pytest.raises(Invalid, match=r"no pretrained.json there; give a folder"):
        pretrained.read(models.parent / "nowhere")


@pytest.mark.parametrize(("task", "start"), [("tag", "scratch"), ("span", "frozen")])
def test_files_of_other_tasks_train_too(models, tmp_path, task, start):
    asked = {"question": "Q", "answers": [{"text": "bc", "answer_start": 2}]}
    span = {"data": [{"paragraphs": [{"context": "a bc d", "qas": [asked]}]}]}
    text = {"tag": "ab O\ncd B-X\n\nef O\n", "span": json.dumps(span)}[task]
    (tmp_path / "train").write_text(text)
    begins = {
        "scratch": ("--num_layers=1", "--width=8", "--hidden=8", "--num_heads=2",
                    "--tokenizer=bytes", "--max_length=16"),
        "frozen": (f"--init_from={models / 'mlm-0'}", "--starts=frozen"),
    }  # fmt: skip
    flags = (f"--task={task}", f"--train_file={tmp_path}/train", f"--dev_file={tmp_path}/train",
             *begins[start], "--steps=1", "--batch_size=2", f"--cache_dir={tmp_path}/cache",
             f"--output_dir={tmp_path}/run")  # fmt: skip
    status, _, err = run(finetune, *flags)
    assert status == 0, err
    (row,) = rows_of(folder_of(tmp_path / "run"))
    assert list(row["scores"])[0] == "f1" and row["cell"]["axes"]["start"] == start
    assert row["details"] == ({"pretraining_seed": 0} if start == "frozen" else {})
