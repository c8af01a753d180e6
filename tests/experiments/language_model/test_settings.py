"""What a user may ask of `language_model`, and what a name, a preset and a text become."""

import dataclasses
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import routes
from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data.windows import consecutive_windows
from attnlab.mechanisms.attentions import require_model
from attnlab.models import Reformer, TransformerLM
from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from experiments.language_model import corpus
from experiments.language_model.models import ablate, build, rounds_of, streams, with_rounds
from experiments.language_model.settings import PRESETS, Settings
from tests.daily import daily

SIZES = dataclasses.replace(
    Settings().sizes(), num_layers=1, num_heads=2, head_dim=6, hidden=11, chunk_size=8
)


def test_the_command_of_a_run_gives_its_settings_also_where_a_preset_differs(tmp_path):
    def parsed(words):
        found = []
        words = ["language_model", f"--output_dir={tmp_path}", *words]
        assert command_line.run(words, Settings, lambda x, _: found.append(x) or 0, doc=None) == 0
        return found[0]

    for words in (
        [],
        ["--preset=gpu", "--dtype=float32", "--num_layers=2", "--dropout_rate=0"],
        ["--preset=paper", "--positions=rotary"],
    ):
        settings = parsed(words)
        again = shlex.split(command_line.command("language_model", Settings, settings.as_json()))
        assert parsed(again[2:]) == settings and set(again[2:]) <= set(words) | {"--dropout_rate=0"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_settings_that_are_valid(preset):
    settings = Settings(**{**Settings.implied({"preset": preset}), "preset": preset})
    assert settings.preset == preset
    assert all(size >= 1 for size in settings.batch_sizes().values())


@pytest.mark.slow
def test_the_papers_preset_has_the_papers_numbers():
    settings = Settings(**Settings.implied({"preset": "paper"}))
    assert settings.batch_sizes() == {65536: 8}
    rates = settings.optimizer().learning_rates(settings.steps)
    for step in (1000, 2000, 50_000):  # 0.03125 · min(step / 2000, 1) / √max(step, 2000)
        wanted = 0.03125 * min(step / 2000, 1) / max(step, 2000) ** 0.5
        assert float(rates(step - 1)) == pytest.approx(wanted, rel=1e-5)
    (name,) = settings.models
    model = build(name, settings.sizes(), vocab_size=260, length=65536)
    shape = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 8), int))
    count = sum(x.size for x in jax.tree.leaves(shape["params"]))
    # published/param_counts.csv; theirs has 258 ids, each in the embedding and in the softmax.
    assert count == 149_182_722 + 2 * (1024 + 2 * 1024 + 1)
    assert model.attention[2].route.num_buckets == 512


def test_every_length_sees_as_many_tokens():
    assert Settings().batch_sizes() == {512: 4, 1024: 2, 2048: 1}
    assert Settings(batch_size=3).batch_sizes() == {512: 3, 1024: 3, 2048: 3}


def test_a_name_is_a_route():
    def route(name):
        (attention,) = build(name, SIZES, vocab_size=9, length=64).attention
        return attention.route

    assert route("exact") == routes.AllPairs()
    assert route("window-7") == routes.Window(7, 0)
    assert route("lsh-3") == routes.LSH(3, num_buckets=16, chunk_size=8)  # 2 · 64 / 8 buckets
    assert route("shared") == routes.LSH(1, num_buckets=1, chunk_size=64)
    assert [rounds_of(name) for name in ("lsh-12", "window-128+lsh-2", "window-128")] == [
        12, 2, None,
    ]  # fmt: skip
    assert streams("lsh-1") == ("dropout", "hash") and streams("window-128") == ("dropout",)


def test_a_name_may_be_a_pattern_of_reversible_layers():
    def parts(name):
        model = build(name, SIZES, vocab_size=9, length=64)
        return type(model), [type(attention.route) for attention in model.attention]

    assert parts("window-5+lsh-2") == (TransformerLM, [routes.Window, routes.LSH])
    assert parts("reformer") == (Reformer, [routes.Window, routes.LSH])
    assert parts("reversible-exact") == (Reformer, [routes.AllPairs])
    assert rounds_of("reformer") == 4 and rounds_of("reversible-window-5") is None
    assert with_rounds("reformer", 8) == "chunked-reversible-window-128+lsh-8"
    assert with_rounds("lsh-4", 8) == "lsh-8"
    require_model("--models", "reversible-window-5+window-5+lsh-2+window-5", 4)


def test_the_ablation_of_a_pattern_is_that_of_its_hashing_layers():
    sizes = dataclasses.replace(SIZES, num_layers=4)
    model = build("reversible-window-5+lsh-2", sizes, vocab_size=9, length=16)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 16), int))
    variables = jax.tree.map(lambda x: jnp.ones(x.shape), shapes)
    found = ablate("reversible-window-5+lsh-2", variables)["params"]["decoder"]
    zeroed = [not found[f"layer_{i}"]["attention"]["out"]["kernel"].any() for i in range(4)]
    assert zeroed == [False, True, False, True]
    left = sum(int(x.sum()) for x in jax.tree.leaves(variables["params"]["decoder"]))
    assert sum(int(x.sum()) for x in jax.tree.leaves(found)) == left - 2 * 12 * 12


@pytest.mark.parametrize("name", daily(["exact", "lsh-2"], "lsh-2"))
def test_an_ablated_model_attends_to_nothing(name):
    model = build(name, SIZES, vocab_size=9, length=16)
    tokens = jnp.asarray(np.random.default_rng(0).integers(4, 9, (1, 16)))
    variables = jax.jit(model.init)(jax.random.key(0), tokens)
    other = tokens.at[0, 3].set(4 + (tokens[0, 3] - 3) % 5)

    def changed(variables):
        one, two = (jax.jit(model.apply)(variables, x) for x in (tokens, other))
        return np.flatnonzero(np.abs(one - two).max((0, 2)) > 1e-6)

    assert len(changed(variables)) > 2
    assert changed(ablate(name, variables)).tolist() == [4]  # which reads token 3 itself


def test_a_text_of_bytes_stays_on_disk(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"to be or not to be, " * 20)
    found = corpus.read(Settings(input=str(path), lengths=(32,)))
    assert found.name == path.name  # rows, which are published, name no folder
    assert isinstance(found.split.test, np.memmap) and found.tokenizer.vocab_size == 260
    assert found.tokenizer.decode(found.windows(32)[3]) == "be or not to be, to be or not to"


def test_characters_are_cut_between_characters(tmp_path):
    path = tmp_path / "text"
    text = "aé€" * 82  # 492 bytes, cut at 442 and 467: both inside of a character
    path.write_text(text)
    found = corpus.read(Settings(input=str(path), vocabulary="characters", lengths=(32,)))
    parts = found.split.training, found.split.validation, found.split.test
    sizes = [
        sum(found.tokenizer.bytes_of[NUM_SPECIAL + i] for i in part.tolist()) for part in parts
    ]
    assert sum(sizes) == len(text.encode()) and sizes[0] == 444
    tokens = np.concatenate(
        [
            batch["tokens"].ravel()
            for part in parts
            for batch in consecutive_windows(part, length=5, batch_size=1, first_id=NUM_SPECIAL)
        ]
    )
    assert found.tokenizer.decode(tokens[tokens > 0].tolist()) == text


@pytest.mark.parametrize(
    ("text", "changed", "message"),
    [
        (b"short" * 6, {}, "--lengths=32: a window is longer than the training part of"),
        (b"", {}, "text is empty; give a text"),
        (
            b"a" * 184 + "é".encode() * 8,
            {"vocabulary": "characters"},
            "--vocabulary=characters: the validation part has 'é', which the training part does",
        ),
        (
            b"\xff" * 200,
            {"vocabulary": "characters"},
            "--vocabulary=characters: the text is not UTF-8 (invalid start byte); give",
        ),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(tmp_path, text, changed, message):
    path = tmp_path / "text"
    path.write_bytes(text)
    with pytest.raises(Invalid) as refused:
        corpus.read(Settings(input=str(path), lengths=(32,), **changed))
    assert message in str(refused.value) and "\n" not in str(refused.value)
