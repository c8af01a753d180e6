"""Settings, plan, examples and attentions of the experiment on duplication."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.positions import sinusoids
from attnlab.runs.errors import Invalid
from experiments.duplication import attention
from experiments.duplication.attention import EXACT, Hashing
from experiments.duplication.plan import POSITIONS, Evaluation, evaluations, trainings
from experiments.duplication.settings import PRESETS, Settings, Size
from experiments.duplication.training import TEST, TRAINING, VALIDATION, batches, build, task

SIZE = Size(word=5, chunk_size=3, steps=4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"words": (7,), "chunk_size": 5},
            "--chunk_size=5: an example of 7 symbols has 16 tokens; give a divisor of that",
        ),
        (
            {"words": (8,), "chunk_size": 2},
            "--chunk_size=2: 18 tokens make 9 chunks, and as many buckets, which are an even "
            "number; give another",
        ),
        ({"words": (7, 7)}, "--words=7,7: give each once"),
        ({"seeds": (1, 1)}, "--seeds=1,1: give each once"),
        ({"examples": 17}, "--examples=17: give a multiple of 16"),
        ({"models": ("lsh-3",)}, "--models=lsh-3: no 'lsh-3'; valid: shared, lsh-4, lsh-2, lsh-1"),
        ({"eval_rounds": (0,)}, "--eval_rounds=0: 0 is too small; give at least 1"),
        ({"bucket_factor": 3}, "--bucket_factor=3 is too large; give at most 2"),
        ({"preset": "tpu"}, "--preset=tpu: no 'tpu'; valid: cpu, gpu, paper, code"),
    ],
)
def test_refuses_bad_settings(changed, message):
    with pytest.raises(Invalid) as refused:
        Settings(**changed)
    assert str(refused.value) == message


def test_nine_chunks_do_without_the_grid():
    assert Settings(words=(8,), chunk_size=2, grid=False).hashings().keys() == {"base"}


def test_workers_would_have_nothing_to_do():
    with pytest.raises(Invalid, match="--num_workers=2: examples are drawn, not prepared"):
        Settings(num_workers=2).check_named(["num_workers"])


def test_presets_are_what_they_say():
    paper, code = Settings(preset="paper"), Settings(preset="code")
    assert [size.length for size in paper.sizes() + code.sizes()] == [1024, 4096]
    assert paper.hashing() == Hashing(scaled=True)
    assert code.hashing() == Hashing(bucket_mask=False) and code.recipe().num_symbols == 126
    told = code.optimizer(50_000)
    assert (told.optimizer, told.schedule, told.warmup_steps) == ("adafactor", "rsqrt", 8000)
    (route,) = attention.options("lsh-8", code.hashing(), length=4096, chunk_size=64).values()
    assert (route.num_hashes, route.num_buckets) == (8, 128)
    for preset in PRESETS.values():
        assert all(size.length % size.chunk_size == 0 for size in preset.sizes)


def test_flags_change_the_recipe():
    settings = Settings(
        words=(63,), chunk_size=8, steps=7, batch_size=3, seeds=(5,), merge="multiset",
        bucket_mask=False, bucket_factor=1, logit_scale="1/sqrt(d)", learning_rate=0.5,
    )  # fmt: skip
    assert settings.sizes() == [Size(63, 8, 7, 3, (5,))]
    assert settings.hashing() == Hashing(True, 1, False, False)
    assert settings.optimizer(7).learning_rate == 0.5
    assert settings.optimizer(7).warmup_steps == 3 and settings.optimizer(1).warmup_steps == 1


def test_the_table_comes_first_then_the_grid_then_longer_words():
    settings = Settings(words=(7, 15), chunk_size=4, seeds=(0, 1), steps=10)
    planned = trainings(settings)
    assert len(set(planned)) == len(planned) == 8 + 2 * 10 + 8
    assert len({one.folder for one in planned}) == len(planned)
    base = settings.hashing()
    names = ["shared", "lsh-4", "lsh-2", "lsh-1"]
    for i, (size, start) in enumerate(((7, 0), (7, 4), (15, 28), (15, 32))):
        some = planned[start : start + 4]
        assert [one.attention for one in some] == names
        assert {(one.size.word, one.hashing, one.seed) for one in some} == {(size, base, i % 2)}
    assert [(one.attention, one.positions) for one in planned[8:10]] == [
        ("shared", "normal"),
        ("lsh-4", "normal"),
    ]
    steps = {(one.attention, one.size.steps) for one in planned}
    assert steps == {("shared", 10), ("lsh-4", 10), ("lsh-2", 10), ("lsh-1", 20), ("plain", 30)}
    varied = [one.hashing for one in planned[10:18] if one.attention == "lsh-4"]
    assert varied == list(base.variations().values())[1:]
    assert [one.beside(base) for one in varied] == [
        "c = 1/√d",
        "B = L/C",
        "no bucket mask",
        "multiset",
        "c = 1/√d, B = L/C, no bucket mask, multiset",
    ]
    assert len(trainings(Settings(words=(7,), chunk_size=4, seeds=(0,), grid=False))) == 4


def test_what_was_trained_on_all_pairs_is_evaluated_with_every_hashing():
    settings = Settings(words=(7, 15), chunk_size=4, seeds=(0,), eval_rounds=(8, 1))
    planned = [one for one in trainings(settings) if one.positions == "sinusoid"]
    by_name = {(one.size.word, one.attention, one.hashing): one for one in planned}
    base = settings.hashing()
    exact = [Evaluation(name, base) for name in EXACT]
    hashed = evaluations(by_name[7, "lsh-4", base], settings)
    assert hashed == [*exact, Evaluation("lsh-8", base), Evaluation("lsh-1", base)]
    full = evaluations(by_name[7, "shared", base], settings)
    assert len(full) == 4 + 6 * 2 and {one.hashing for one in full} == {*base.variations().values()}
    assert evaluations(by_name[15, "shared", base], settings) == hashed


def test_an_example_is_a_word_twice_and_only_its_second_half_counts():
    first, again, other, held_out = (
        list(itertools.islice(batches(SIZE, 7, seed, part, batch_size=3), 2))
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
    words.add(next(iter(batches(SIZE, 7, 3, TEST, batch_size=3)))["tokens"].tobytes())
    assert len(words) == 4


@pytest.mark.slow
def test_no_parameter_depends_on_the_attention():
    shapes = []
    for name in (*EXACT, "lsh-1", "lsh-4"):
        for hashing in Hashing().variations().values():
            model = build(Size(31, 16, 1), 127, name, hashing)
            tokens = jnp.ones((1, 64), jnp.int32)
            shapes.append(jax.eval_shape(model.init, jax.random.key(0), tokens))
    assert all(shape == shapes[0] for shape in shapes)
    count = sum(x.size for x in jax.tree.leaves(shapes[0]))
    # The published count, of a model that has biases before its softmax and fixed positions.
    assert count == 395_392 - 128 + 256 * 64


def test_positions_begin_as_they_are_told():
    size, tokens = Size(31, 16, 1), jnp.ones((1, 64), jnp.int32)
    tables = [
        jax.jit(build(size, 127, "shared", Hashing(), name).init)(jax.random.key(0), tokens)
        for name in POSITIONS
    ]
    sines, drawn = (np.asarray(table["params"]["inputs"]["positions"]) for table in tables)
    np.testing.assert_array_equal(sines, sinusoids(jnp.arange(64), 256))
    assert abs(drawn.std() - 1) < 0.05 and abs(drawn.mean()) < 0.05


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_the_four_senses_of_all_pairs(name, scaled):
    length, heads, width = 7, 2, 5
    q, v = np.random.default_rng(0).normal(size=(2, 1, length, heads, width)).astype(np.float32)
    told = attention.options(name, Hashing(scaled=scaled), length=length, chunk_size=1)
    score = told["score"](q, q) if "score" in told else attention.Dot()

    @jax.jit
    def ours(q, v):
        return told["route"](score, q, q, v, mask=masks.Causal())

    unit, sees_itself = name in ("shared", "shared, own key"), name in ("shared, own key", "plain")
    keys = q / np.linalg.norm(q, axis=-1, keepdims=True) if unit else q
    logits = np.einsum("btnh,bsnh->bnts", q, keys) / (width**0.5 if scaled else 1)
    shown = np.tril(np.ones((length, length), bool), 0 if sees_itself else -1)
    shown[0, 0] = True  # nothing else is there
    weights = np.where(shown, np.exp(logits), 0)
    weights /= weights.sum(-1, keepdims=True)
    true = np.einsum("bnts,bsnh->btnh", weights, v)
    np.testing.assert_allclose(ours(q, v), true, rtol=1e-4, atol=1e-5)


def test_hashing_is_told_to_the_route():
    told = {"length": 24, "chunk_size": 4}
    route = attention.options("lsh-2", Hashing(), **told)["route"]
    assert (route.num_hashes, route.num_buckets, route.chunk_size) == (2, 12, 4)
    assert (route.options.same_bucket, route.options.union) == (True, True)
    assert route.options.logit_scale == 1.0 and not route.options.strict
    other = attention.options("lsh-2", Hashing(True, 1, False, False), **told)["route"]
    assert other.num_buckets == 6 and other.options.logit_scale is None
    assert (other.options.same_bucket, other.options.union) == (False, False)


def test_a_training_draws_its_rotations_and_is_known_by_what_it_is():
    settings = Settings(words=(7,), chunk_size=4, seeds=(0,), grid=False)
    tasks = [task(one, settings) for one in trainings(settings)]
    assert all(one.streams == ("hash",) for one in tasks)
    assert len({one.identity["model"] for one in tasks}) == 4
    faster = Settings(words=(7,), chunk_size=4, seeds=(0,), grid=False, learning_rate=0.5)
    assert task(trainings(faster)[0], faster).identity != tasks[0].identity
