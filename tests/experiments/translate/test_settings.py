"""What `translate` may be asked, and that every recipe builds its model."""

import dataclasses
import functools
import json
import shlex

import jax
import jax.numpy as jnp
import pytest

from attnlab.runs import command_line, palette
from attnlab.runs.errors import Invalid
from experiments.translate.__main__ import Translate, task
from experiments.translate.corpus import open_corpus
from experiments.translate.models import MODELS, build
from experiments.translate.recipes import PRESETS, RECIPES
from experiments.translate.settings import Settings
from experiments.translate.variants import Variant
from tests.daily import daily

FILES = ("a.de", "a.en")


def parsed(flags):
    found = []

    def keep(settings, folder):
        found.append(settings)
        return 0

    assert command_line.run(["translate", *flags], Settings, keep, doc=None) == 0
    return found[0]


def test_the_command_line_of_settings_gives_these_settings(tmp_path):
    texts = tmp_path / "my texts.de", tmp_path / "a.en"
    for path in texts:
        path.touch()
    settings = Settings(
        preset="cpu",
        data_files=tuple(map(str, texts)),
        **PRESETS["cpu"] | {"models": ("luong", "rnn_search")},
        learning_rate=3e-5,
        dropout_rate=0.0,
        steps=7,
        tensorboard=True,
        seeds=(1, 0),
        set=("luong.score=dot,concat", "luong.reverse_source=false"),
    )
    launcher, name, *flags = shlex.split(
        command_line.command("translate", Settings, settings.as_json())
    )
    assert (launcher, name) == ("launch/local", "translate")
    assert parsed(flags) == settings
    assert command_line.command("translate", Settings, {}) == "launch/local translate"


def test_flags_change_the_recipe_of_every_model():
    changed = Settings(steps=8, batch_size=6, learning_rate=0.5, dropout_rate=0.25, max_length=9)
    before = Settings()
    for name in MODELS:
        recipe, old = changed.recipe(Variant(name)), before.recipe(Variant(name))
        assert (recipe.steps, recipe.batch_size, recipe.sizes["dropout_rate"]) == (8, 6, 0.25)
        optimizer = dataclasses.replace(old.optimizer, learning_rate=0.5, warmup_steps=4)
        assert recipe.optimizer == optimizer
        recipe.optimizer.build(8)  # a short training warms up in half of its steps
        assert old == RECIPES["dates"][name]
    averaged = Settings(average=3).loop_of(Variant("luong"), seed=0)
    assert (averaged.average, averaged.steps) == (3, before.recipe(Variant("luong")).steps)
    sizes = Settings(preset="cpu", data_files=FILES, vocab_size=99)
    assert sizes.vocab_size_of(joint=True) == sizes.vocab_size_of(joint=False) == 99
    sizes = Settings(preset="paper", data_files=FILES, steps=8)
    assert sizes.recipe(Variant("luong")).optimizer.warmup_steps == 0  # it has none
    assert (sizes.vocab_size_of(joint=False), sizes.vocab_size_of(joint=True)) == (32_000, 37_000)


def test_a_recipe_that_is_edited_is_another_training(monkeypatch):
    settings = Settings(max_length=16)
    of_dates = open_corpus(settings)

    def identity():
        return task(settings.variants()[0], 0, settings, of_dates).identity

    before = identity()
    assert identity() == before == json.loads(json.dumps(before))
    recipe = settings.recipe(settings.variants()[0])
    edited = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, b2=0.5))
    monkeypatch.setattr(Settings, "recipe", lambda *_: edited)
    assert identity() != before


def test_data_have_the_preset_cpu_where_none_is_named():
    assert Settings.implied({"data_files": FILES}) == {"preset": "cpu", **PRESETS["cpu"]}
    assert Settings.implied({"tfds_name": "wmt"})["preset"] == "cpu"
    assert Settings.implied({"data_files": FILES, "preset": "small"}) == PRESETS["small"]
    assert Settings.implied({}) == {}


def test_each_value_that_is_set_is_a_variant_of_its_own():
    settings = Settings(
        models=("luong", "rnn_search"),
        set=("luong.score=dot,concat", "luong.reverse_source=false", "rnn_search.dropout_rate=.5"),
        dropout_rate=0.25,
    )
    variants = settings.variants()
    assert [one.changes for one in variants] == [
        "score=dot, reverse_source=False",
        "score=concat, reverse_source=False",
        "dropout_rate=0.5",
    ]
    dot, concat, search = (settings.recipe(one).sizes for one in variants)
    assert (dot["score"], concat["score"], search["dropout_rate"]) == ("dot", "concat", 0.5)
    assert dot["reverse_source"] is False and dot["dropout_rate"] == 0.25
    sizes = Settings(models=("transformer",), set=("transformer.positions=none,rotary",))
    assert [sizes.recipe(one).sizes["positions"] for one in sizes.variants()] == [None, "rotary"]


def test_each_variant_is_trained_once_for_each_seed():
    settings = Settings(models=("luong",), set=("luong.score=dot,concat",), seeds=(3, 1))
    cells = Translate(settings, None).cells()
    assert [cell.folder for cell in cells] == [
        f"luong-score={score}-seed{seed}" for seed in (3, 1) for score in ("dot", "concat")
    ]
    assert str(cells[0]) == "luong, score=dot, seed 3"
    assert Translate(settings, None).variant(cells[1]).changed == (("score", "concat"),)


def test_refuses_fewer_positions_than_the_longest_pair_has():
    few = ("transformer.positions=learned", "transformer.max_length=39")
    given = (
        "--set=transformer.positions=learned --set=transformer.max_length=39: there are positions"
    )
    with pytest.raises(Invalid, match=f"{given} for max_length=39 tokens; got 40"):
        Settings(models=("transformer",), set=few)
    Settings(models=("transformer",), set=few, max_length=39)


def test_vocabularies_and_means_are_the_papers():
    over_sentences = {"rnn_search", "rnn_encdec", "luong"}
    for name, recipes in RECIPES.items():
        for model, recipe in recipes.items():
            assert recipe.joint_vocabulary == (model == "transformer")
            of_sentences = name == "paper" and model in over_sentences
            assert recipe.gradient_mean_over == ("sentences" if of_sentences else "tokens")


@pytest.mark.parametrize("name", daily(MODELS, "luong", "transformer"))
@pytest.mark.parametrize("preset", RECIPES)
def test_every_recipe_builds_its_model(preset, name):
    recipe = RECIPES[preset][name]
    sizes = {**recipe.sizes, "dropout_rate": 0.5}  # as --dropout_rate gives it
    model = build(name, sizes, source_vocab_size=11, target_vocab_size=13, dtype="bfloat16")
    source, target = (jax.ShapeDtypeStruct((2, n), jnp.int32) for n in (5, 7))
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    make = functools.partial(model.init_with_output, deterministic=False)
    logits, _ = jax.eval_shape(make, keys, source, target)
    assert logits.shape == (2, 7, 13) and logits.dtype == jnp.float32
    recipe.optimizer.build(recipe.steps)
    assert name in palette.MODEL_TITLES.keys() & palette.MODELS.keys()
    assert set(PRESETS[preset].get("models", ())) <= set(RECIPES[preset])
