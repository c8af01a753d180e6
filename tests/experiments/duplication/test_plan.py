"""Settings, cells, examples and attentions of the study on duplication."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.positions import sinusoids
from attnlab.studies.study import Cell, Drawn, identity
from experiments.duplication import attention
from experiments.duplication.__main__ import (
    POSITIONS,
    TEST,
    TRAINING,
    VALIDATION,
    Duplication,
    batches,
    build,
)
from experiments.duplication.attention import EXACT, SCALES, Hashing
from experiments.duplication.settings import Settings

BASE = Hashing()
FEW = {"words": (7,), "chunk_size": 4, "seeds": (0,)}


def study_of(**flags):
    return Duplication(Settings(**flags), Drawn("duplication"))


def test_nine_chunks_do_without_the_grid():
    assert Settings(words=(8,), chunk_size=2, grid=False).hashings() == [BASE]


def test_flags_say_hashing_and_optimizer():
    settings = Settings(
        words=(63,), chunk_size=8, merge="multiset", bucket_mask=False, bucket_factor=1,
        logit_scale="1/sqrt(d)", learning_rate=0.5,
    )  # fmt: skip
    assert settings.hashing() == Hashing("1/sqrt(d)", 1, False, "multiset")
    assert settings.optimizer_for(7).learning_rate == 0.5
    assert [settings.optimizer_for(x).warmup_steps for x in (1000, 7, 1)] == [200, 3, 1]


@pytest.mark.parametrize("hashing", [BASE, *BASE.variations()], ids=str)
def test_a_hashing_is_read_as_it_is_written(hashing):
    assert Hashing.parse(str(hashing)) == hashing


def test_the_table_comes_first_then_the_grid_then_longer_words():
    study = study_of(words=(15, 7), chunk_size=4, seeds=(0, 1), steps=10)
    cells = study.cells()
    assert len(set(cells)) == len(cells) == 8 + 2 * 10 + 8
    assert len({cell.folder for cell in cells}) == len(cells)
    names = ["shared", "lsh-4", "lsh-2", "lsh-1"]
    for i, (word, start) in enumerate(((7, 0), (7, 4), (15, 28), (15, 32))):
        some = cells[start : start + 4]
        assert [cell["attention"] for cell in some] == names
        shared = {(cell["word"], cell["hashing"], cell["positions"], cell.seed) for cell in some}
        assert shared == {(word, str(BASE), "sinusoid", i % 2)}
    assert [(cell["attention"], cell["positions"]) for cell in cells[8:10]] == [
        ("shared", "normal"),
        ("lsh-4", "normal"),
    ]
    steps = {(cell["attention"], study.training(cell).loop.steps) for cell in cells}
    assert steps == {("shared", 10), ("lsh-4", 10), ("lsh-2", 10), ("lsh-1", 20), ("plain", 30)}
    varied = [cell["hashing"] for cell in cells[10:18] if cell["attention"] == "lsh-4"]
    assert varied == [str(x) for x in BASE.variations()] == [
        "c=1/sqrt(d) B=2 mask union",
        "c=1 B=1 mask union",
        "c=1 B=2 no-mask union",
        "c=1 B=2 mask multiset",
        "c=1/sqrt(d) B=1 no-mask multiset",
    ]  # fmt: skip
    assert len(study_of(**FEW, grid=False).cells()) == 4


def test_what_was_trained_on_all_pairs_is_evaluated_with_every_hashing():
    study = study_of(words=(7, 15), chunk_size=4, seeds=(0,), eval_rounds=(8, 1))

    def evaluations(word, name):
        axes = {"word": word, "attention": name, "hashing": str(BASE), "positions": "sinusoid"}
        return study.evaluations(Cell(axes, 0))

    hashed = evaluations(7, "lsh-4")
    assert hashed == [*EXACT, "lsh-8", "lsh-1"] == evaluations(15, "shared")
    shared = evaluations(7, "shared")
    assert shared[:6] == hashed and len({*shared}) == len(shared) == 6 + 5 * 2
    others = {Hashing.parse(name.partition(": ")[2]) for name in shared[6:]}
    assert others == {*BASE.variations()}


def test_an_example_is_a_word_twice_and_only_its_second_half_counts():
    first, again, other, held_out = (
        list(itertools.islice(batches(5, 7, seed, part, batch_size=3), 2))
        for seed, part in ((3, TRAINING), (3, TRAINING), (4, TRAINING), (3, VALIDATION))
    )
    for batch in first:
        tokens = batch["tokens"]
        assert tokens.shape == (3, 12) and tokens.dtype == np.int32
        np.testing.assert_array_equal(tokens[:, :6], tokens[:, 6:])
        assert (tokens[:, 0] == 0).all() and (tokens[:, 1:6] > 0).all() and tokens.max() <= 7
        np.testing.assert_array_equal(batch["weights"], [[0] * 7 + [1] * 5] * 3)
    assert len({row.tobytes() for batch in first for row in batch["tokens"]}) == 6
    np.testing.assert_array_equal(first[1]["tokens"], again[1]["tokens"])
    words = {batches[0]["tokens"].tobytes() for batches in (first, other, held_out)}
    words.add(next(iter(batches(5, 7, 3, TEST, batch_size=3)))["tokens"].tobytes())
    assert len(words) == 4


@pytest.mark.slow
def test_no_parameter_depends_on_the_attention():
    shapes = []
    for name in (*EXACT, "lsh-1", "lsh-4"):
        for hashing in (BASE, *BASE.variations()):
            model = build(Settings(), 31, name, hashing)
            tokens = jnp.ones((1, 64), jnp.int32)
            shapes.append(jax.eval_shape(model.init, jax.random.key(0), tokens))
    assert all(shape == shapes[0] for shape in shapes)
    count = sum(x.size for x in jax.tree.leaves(shapes[0]))
    # The published count, of a model that has biases before its softmax and fixed positions.
    assert count == 395_392 - 128 + 256 * 64


def test_positions_begin_as_they_are_told():
    tokens = jnp.ones((1, 64), jnp.int32)
    tables = [
        jax.jit(build(Settings(), 31, "shared", BASE, name).init)(jax.random.key(0), tokens)
        for name in POSITIONS
    ]
    sines, drawn = (np.asarray(table["params"]["inputs"]["positions"]) for table in tables)
    np.testing.assert_array_equal(sines, sinusoids(jnp.arange(64), 256))
    assert abs(drawn.std() - 1) < 0.05 and abs(drawn.mean()) < 0.05


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXACT)
def test_the_four_senses_of_all_pairs(name, scale):
    length, heads, width = 7, 2, 5
    q, v = np.random.default_rng(0).normal(size=(2, 1, length, heads, width)).astype(np.float32)
    told = attention.options(name, Hashing(scale), length=length, chunk_size=1)
    score = told["score"](q, q) if "score" in told else attention.Dot()

    @jax.jit
    def ours(q, v):
        return told["route"](score, q, q, v, mask=masks.Causal())

    unit, sees_itself = name in ("shared", "shared, own key"), name in ("shared, own key", "plain")
    keys = q / np.linalg.norm(q, axis=-1, keepdims=True) if unit else q
    logits = np.einsum("btnh,bsnh->bnts", q, keys) / {"1": 1, "1/sqrt(d)": width**0.5}[scale]
    shown = np.tril(np.ones((length, length), bool), 0 if sees_itself else -1)
    shown[0, 0] = True  # nothing else is there
    weights = np.where(shown, np.exp(logits), 0)
    weights /= weights.sum(-1, keepdims=True)
    true = np.einsum("bnts,bsnh->btnh", weights, v)
    np.testing.assert_allclose(ours(q, v), true, rtol=1e-4, atol=1e-5)


def test_hashing_is_told_to_the_route():
    told = {"length": 24, "chunk_size": 4}
    route = attention.options("lsh-2", BASE, **told)["route"]
    assert (route.num_hashes, route.num_buckets, route.chunk_size) == (2, 12, 4)
    assert (route.options.same_bucket, route.options.union) == (True, True)
    assert route.options.logit_scale == 1.0
    other = attention.options("lsh-2", Hashing("1/sqrt(d)", 1, False, "multiset"), **told)["route"]
    assert other.num_buckets == 6 and other.options.logit_scale is None
    assert (other.options.same_bucket, other.options.union) == (False, False)


def test_a_training_draws_its_rotations_and_is_known_by_what_it_is():
    study = study_of(**FEW, grid=False)
    assert all(study.training(cell).task.streams == ("hash",) for cell in study.cells())
    faster = study_of(**FEW, grid=False, learning_rate=0.5)
    known = [identity(x, cell) for x in (study, faster) for cell in x.cells()]
    assert all(a != b for a, b in itertools.combinations(known, 2))
