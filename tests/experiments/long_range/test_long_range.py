"""`long_range` from its flags to its report."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.core.tokens import UNK
from attnlab.mechanisms.attentions import streams
from attnlab.studies import run
from experiments.long_range import __main__ as experiment
from experiments.long_range.examples import (
    batches,
    fixed_batches,
    majority,
    mask_tokens,
    open_tasks,
)
from experiments.long_range.settings import Settings
from tests.daily import daily
from tests.experiments import tiny

KEPT = Path(__file__).resolve().parents[3] / "experiments/results/cpu/long_range"
SIZES = {"length": 24, "min_length": 4, "width": 8, "hidden": 8, "num_heads": 2, "num_layers": 1}
SIZES |= {"test_examples": 5, "batch_size": 4}


NAMES = ("exact", "additive", "concat", "cosine", "general", "hard", "window-3+exact", "lsh-2")


@pytest.mark.parametrize("name", daily(NAMES, "hard"))
def test_every_mechanism_classifies(name):
    settings = Settings(**SIZES | {"mechanisms": (name,), "num_layers": 2, "chunk_size": 4})
    long_range = experiment.LongRange(settings, open_tasks(settings))
    model = long_range.training(long_range.cells()[0]).task.model
    tokens = jnp.array([[1, 5, 6, 7, 0], [1, 8, 0, 0, 0]])
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    rngs = {stream: jax.random.key(0) for stream in streams(name)}
    logits = jax.eval_shape(
        lambda variables: model.apply(variables, tokens, deterministic=False, rngs=rngs), variables
    )
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("task", ["listops", "retrieval"])
def test_splits_share_no_example_and_a_last_batch_is_filled(task):
    examples = open_tasks(Settings(**SIZES | {"tasks": (task,)})).examples[task]
    splits = examples.splits(0)
    assert splits["train"][0] != splits["validation"][0] != splits["test"][0]
    assert splits["train"][0] != examples.splits(1)["train"][0]
    found = fixed_batches(examples, "test", 4)
    assert [list(batch["label"] >= 0) for batch in found] == [[True] * 4, [True] + [False] * 3]
    assert 0 < majority(found) <= 1
    batch = next(iter(batches(examples, 0, 4)))
    assert batch["tokens"].shape == ((4, 24) if task == "listops" else (4, 2, 24))
    assert (batch["tokens"][..., 0] == 1).all() and batch["tokens"].max() < examples.vocab_size


def test_a_file_that_is_sorted_by_its_labels_is_validated_on_all_of_them(tmp_path):
    file = tmp_path / "sorted.tsv"
    file.write_text("".join(f"{label}\ttext {i}\n" for label in "ab" for i in range(20)))
    files = {"train_file": str(file), "test_file": str(file)}
    splits = open_tasks(Settings(**SIZES, tasks=("text",), **files)).examples["text"].splits(0)
    assert [row["label"] for row in splits["validation"]] == list("aabb")
    assert len(splits["train"]) == 36


def test_masked_tokens_are_words_and_their_labels_are_what_they_were():
    tokens = np.array([[1, 5, 6, 7, 8, 9, 0, 0], [1, 7, 7, 5, 0, 0, 0, 0]], np.int32)
    rng = np.random.default_rng(3)
    draws = [mask_tokens({"tokens": tokens}, 0.25, rng) for _ in range(40)]
    for drawn in draws:
        chosen = drawn["label"] >= 0
        assert chosen.sum() == 2 and (tokens[chosen] > 3).all()
        assert (drawn["tokens"][chosen] == UNK).all()
        np.testing.assert_array_equal(np.where(chosen, drawn["label"], drawn["tokens"]), tokens)
    assert (np.sum([drawn["label"] >= 0 for drawn in draws], 0) > 0).sum() == 8  # each word at last
    empty = mask_tokens({"tokens": np.array([1, 0, 0], np.int32)}, 0.25, rng)
    assert empty["tokens"].tolist() == [1, 0, 0] and (empty["label"] == -1).all()


def test_what_is_pre_trained_hands_its_encoder_on(no_figures, monkeypatch, tmp_path):
    made, run_training = [], run.run_training

    def spied(task, **others):
        made.append((task, others["folder"].name, run_training(task, **others)))
        return made[-1][2]

    monkeypatch.setattr(run, "run_training", spied)
    flags = [f"--{name}={x}" for name, x in SIZES.items()]
    flags += ["--mechanisms=exact", "--starts=pretrained", "--pretrain_steps=40", "--steps=1"]
    flags += ["--learning_rate=0.05", "--validate_every=20", f"--run_dir={tmp_path / 'run'}"]
    assert tiny.run(experiment, *flags)[0] == 0
    (_, name, before), (task, last, after) = made
    assert (name, last) == (f"{last}-before", "listops-exact-pretrained-seed0")
    assert before.validation["loss"] < math.log(19) - 0.3  # of 19 ids all are as likely at first
    assert "classes" in before.params and before.params["classes"]["bias"].shape == (19,)
    begun = task.start({"classes": 1, "encoder": 2})
    assert begun["classes"] == 1
    jax.tree.map(np.testing.assert_array_equal, begun["encoder"], before.params["encoder"])
    (row,) = map(json.loads, (tmp_path / "run" / "results.jsonl").read_text().splitlines())
    assert row["seconds"] > before.seconds + after.seconds - 1e-6


def test_a_run_from_files_to_its_report(no_figures, tmp_path):
    lines = [f"{label}\t{word * 5}" for label, word in (("pos", "ab"), ("neg", "yz"))]
    for name, count in (("train", 12), ("test", 3)):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines * count) + "\n")
    files = [f"--{name}_file={tmp_path / name}.tsv" for name in ("train", "test")]
    drawn = {"min_length", "test_examples", "chunk_size"}  # what counts for nothing here
    flags = [f"--{name}={x}" for name, x in SIZES.items() if name not in drawn]
    flags += ["--steps=12", "--log_every=6", "--validate_every=6", "--learning_rate=0.02"]
    flags += ["--warmup_steps=1", f"--output_dir={tmp_path / 'out'}", "--mechanisms=window-2"]
    tiny.finish(experiment, "--tasks=text", *files, *flags, "--pooling=mean")
    (folder,) = (tmp_path / "out").iterdir()
    (row,) = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert row["scores"] == {"accuracy": 1.0} and row["details"]["majority"] == 0.5
    assert row["details"]["memory"] > 1e4
    text = " ".join((folder / "report.md").read_text().split())
    assert "| text, window-2, scratch | 100.0 | Local Attention | 52.98 |" in text

    (tmp_path / "test.tsv").write_text("strange\tab\n")
    status, _, err = tiny.run(experiment, "--tasks=text", *files, *flags)
    assert status == 2 and "has the label 'strange', which was not in training: neg, pos" in err
