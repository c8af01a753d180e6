"""Attention of a user's own, by its name in a file: what is taken, what is refused in a line."""

import hashlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, routes
from attnlab.mechanisms import attentions, own
from attnlab.mechanisms.attentions import Surroundings
from attnlab.models.transformer import TransformerConfig
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.runs import palette
from attnlab.runs.errors import Invalid, Stopped
from attnlab.scores import Score
from attnlab.studies.study import Cell

FILE = """
import attnlab, dataclasses
import flax.linen as nn, flax.struct, jax, jax.numpy as jnp
from attnlab import masks, routes, scores

number = 3
halved = scores.Dot(0.5)
band = routes.Window(2, 0)

class Strided(masks.Mask):
    "Keys at distances of a stride."
    stride: int = flax.struct.field(pytree_node=False, default=2)
    def visible(self, i, j): return (i - j) % self.stride == 0

class Lines(attnlab.BiasModule):
    @nn.compact
    def __call__(self, num_heads, num_queries, num_keys, *, causal):
        return jnp.zeros((num_heads, num_queries, num_keys))

class Far(attnlab.ScoreModule):
    "A score with a parameter."
    @nn.compact
    def __call__(self, q, k):
        return scores.Cosine(self.param("scale", nn.initializers.ones, ()))

class Layer(nn.Module):
    num_heads: int
    size: int = 1
    rotary: bool = False
    @nn.compact
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None, decode=False):
        return query * self.num_heads

made = Layer(5, size=7)
sampled = attnlab.MultiHeadAttention(2, route=routes.Hard())

def plain(q, k, v, *, mask, power=1.0):
    logits = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5 * power
    logits = jnp.where(mask.as_array(q.shape[1], k.shape[1]), logits, -1e30)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits), v)

def loud(q, k, v, *, mask=None, **options): return plain(q, k, v, mask=mask) * options["scale"]
def many(q, k, v, *rest): return v
def two(q, k): return q
def short(q, k, v, *, mask): return v[:, :1]
def half(q, k, v, *, mask): return v.astype("bfloat16")
def blind(q, k, v): return v
def fails(q, k, v, *, mask): return q @ k

class NoPositions(nn.Module):
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None, decode=False):
        return query

class Narrow(NoPositions):
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None, decode=False):
        return query[..., :1]

class NoDecode(nn.Module):
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None): ...

class Unsaid(nn.Module):
    def __call__(self, q, k): ...

class Almost:
    def __call__(self, *args, **options): ...
    def weights(self, *args, **options): ...
"""
CONFIG = TransformerConfig(9, num_layers=2, width=6, hidden=7, num_heads=2, dropout_rate=0.0)


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(own, "_loaded", {})  # else rows of other tests would tell of it


@pytest.fixture
def at(tmp_path):
    """(name) → the name in a file that is there."""
    (tmp_path / "mine.py").write_text(FILE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


@pytest.mark.parametrize(
    ("name", "kind", "title", "draws"),
    [
        ("halved", "score", "q·k", ""),
        ("Far", "score", "A score with a parameter", ""),
        ("Strided", "mask", "Keys at distances of a stride", ""),
        ("Strided(3)", "mask", "Keys at distances of a stride", ""),
        ("Lines", "bias", "Lines", ""),
        ("band", "route", "", ""),
        ("plain", "function", "plain", ""),
        ("plain(power=2.0)", "function", "plain", ""),
        ("Layer", "module", "", ""),
        ("Layer(2)", "module", "", ""),
        ("made", "module", "", ""),
        ("sampled", "module", "", "sample"),
    ],
)
def test_what_is_named_is_of_a_kind_and_is_a_layer(at, name, kind, title, draws):
    mine = own.load(at(name))
    assert (mine.name, mine.kind, mine.draws) == (at(name), kind, draws)
    assert title in mine.title and mine.title
    assert mine.digest == hashlib.sha256(FILE.encode()).hexdigest()
    for causal in (False, True):
        (layer,) = attentions.pattern(at(name), CONFIG, Surroundings(causal, 11))
        x = jnp.ones((1, 11, 6))
        y, _ = layer.init_with_output(jax.random.key(0), x, mask=masks.Causal(), deterministic=True)
        assert y.shape == x.shape


def test_names_of_a_module_are_taken_too():
    mine = own.load("attnlab.routes:Hard")
    assert (mine.kind, mine.value, mine.draws) == ("route", routes.Hard(), "sample")
    assert own.load("attnlab.routes:LSH(num_hashes=2)").draws == "hash"


def test_files_of_one_name_are_two_modules_and_import_what_is_beside_them(tmp_path):
    for folder, beside in (("a", "x = 1"), ("b", "x = 2"), ("c", "x = 1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_mine.py").write_text(beside)
        (tmp_path / folder / "mine.py").write_text(f"import beside_mine\n{FILE}")
    for mask in [own.load(f"{tmp_path / folder}/mine.py:Strided").value for folder in "ac"]:
        assert sys.modules[type(mask).__module__].Strided is type(mask)
    with pytest.raises(Invalid, match=r"b/beside_mine\.py cannot be imported .*; rename one"):
        own.load(f"{tmp_path / 'b'}/mine.py:Strided")


def test_arguments_reach_what_is_made(at):
    assert own.load(at("Strided(stride=3)")).value.stride == 3
    for name in ("plain(power=2.0)", "loud(scale=2.0)"):
        keyword = name.partition("(")[2].partition("=")[0]
        assert own.load(at(name)).value.keywords == {keyword: 2.0}
    assert isinstance(own.load(at("halved")).value, Score)
    # The surroundings say what the user does not.
    module = MultiHeadAttention(2, out_features=6, dropout_rate=0.3, parent=None)
    for name, fields in (("made", (5, 7)), ("Layer", (2, 1)), ("Layer(4, size=3)", (4, 3))):
        made = own.load(at(name)).in_place_of(module)
        assert (made.num_heads, made.size) == fields
    lsh = own.load("attnlab.modules.multi_head:MultiHeadAttention(3)").in_place_of(module)
    assert (lsh.num_heads, lsh.out_features) == (3, 6)
    sampled = own.load(at("sampled")).in_place_of(module)
    assert (sampled.num_heads, sampled.dropout_rate) == (2, 0.3)


def test_a_function_computes_what_the_same_score_does_and_is_told_the_arguments(at):
    x = jax.random.normal(jax.random.key(0), (2, 11, 6))
    layers = [
        attentions.pattern(name, CONFIG, Surroundings(True, 11))[0]
        for name in ("exact", at("plain"), at("plain(power=3.0)"))
    ]
    variables = layers[0].init(jax.random.key(1), x)
    exact, plain, other = (layer.apply(variables, x, mask=masks.Causal()) for layer in layers)
    np.testing.assert_allclose(plain, exact, rtol=1e-4, atol=1e-5)
    assert np.abs(other - exact).max() > 1e-2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "mine.py:NAME; there are: halved, band, Strided, Lin"),
        ("Nope", "nothing there is called Nope; there are: halved, band, Strided, Lin"),
        ("number", "int is no attention; give a score, a mask, a module of a bias, a route (inhe"),
        ("Almost", "Almost is no attention; give a score, a mask, a module of a bias, a route (in"),
        ("Unsaid", "the module of a score inherits ScoreModule, that of a bias BiasModule"),
        ("two", "it is called with q, k, v; too many positional arguments"),
        ("NoDecode", "it is called with query, key, value, mask=, deterministic=, decode=; got"),
        ("Strided(rate=2)", "it cannot be made of these arguments: TypeError: "),
        ("many(1, 2, 3, 4)", "*rest has no names; give the arguments by name"),
        ("plain(strength=2)", "got an unexpected keyword argument 'strength'"),
        ("halved(2.0)", "Dot is made already; leave the arguments out"),
        ("Strided(stride=number)", "arguments are literals, such as (rate=0.9, size=4)"),
    ],
)
def test_what_is_no_mechanism_is_refused_when_it_is_named(at, capsys, name, words):
    with pytest.raises(Invalid) as error:
        attentions.require_attention("--attention", at(name), num_layers=2)
    line = str(error.value)
    assert line.startswith(f"--attention: {at(name)}: ") and words in line and "\n" not in line
    assert "layers repeat" not in line  # is about the grammar
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "short",
            "must be [*B, T, N, D] = (2, 11, 2, 3) for q [*B, T, N, H] = (2, 11, 2, 3); got (2, 1",
        ),
        ("half", "must return the context, in the dtype float32; got bfloat16"),
        ("blind", "blind(q, k, v) must take mask= here"),
        (
            "Narrow",
            "must return what it is called with, float32 (2, 11, 6); got float32 (2, 11, 1)",
        ),
        ("Almost", "inherit routes.Exact"),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_no_attention_of_a_layer_is_refused_in_one_line(at, capsys, name, words, causal):
    with pytest.raises(Invalid) as error:
        attentions.pattern(f"exact+{at(name)}", CONFIG, Surroundings(causal, 11))
    assert words in str(error.value) and at(name) in str(error.value)
    assert capsys.readouterr().err == ""


def test_what_fails_in_a_layer_shows_where(at, capsys):
    with pytest.raises(Invalid, match=r"mine\.py:fails fails in a layer: TypeError: dot_general"):
        attentions.pattern(at("fails"), CONFIG)
    assert "in fails\n" in capsys.readouterr().err


def test_a_module_without_positions_is_refused_where_attention_has_them(at):
    rotary = TransformerConfig(9, width=8, num_heads=2, positions="rotary")
    with pytest.raises(Invalid, match="NoPositions has no rotary, so it would know no posi"):
        attentions.pattern(at("NoPositions"), rotary)
    assert attentions.pattern(at("Layer(2)"), rotary)[0].rotary
    alibi = TransformerConfig(9, width=6, num_heads=2, positions="alibi")
    with pytest.raises(Invalid, match=r"Layer\(2\) has no position_bias"):
        attentions.pattern(at("Layer(2)"), alibi)


def test_a_file_that_cannot_be_imported_shows_where(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nimport no_such_package\n")
    with pytest.raises(Invalid, match=r"broken\.py cannot be imported: ModuleNotFoundError: No mo"):
        own.load(f"{path}:X")
    assert 'broken.py", line 2' in capsys.readouterr().err
    with pytest.raises(Invalid, match=r"none\.py: there is no such file"):
        own.load(f"{tmp_path}/none.py:X")
    with pytest.raises(Invalid, match="'exact' names no attention of your own; give FILE"):
        own.load("exact")


def test_digests_are_of_what_is_named(at):
    names = [at("Strided(stride=3)"), at("plain")]
    for name in names:
        own.load(name)
    digest = hashlib.sha256(FILE.encode()).hexdigest()
    assert own.digests(f"window-4+{names[0]}, seed 0") == {names[0]: digest}
    assert own.digests(f"reversible-{names[0]}") == {names[0]: digest}
    assert own.digests(f"{names[1]}er, seed 0") == {}
    assert (
        own.digests("exact") == {} and own.digests().items() >= {x: digest for x in names}.items()
    )


def test_a_file_that_was_changed_or_is_gone_ends_the_work(at):
    path = Path(at("").removesuffix(":"))
    own.load(at("plain"))
    own.require_unchanged()
    path.write_text(f"{FILE}\n# another")
    with pytest.raises(Stopped, match="was changed after it was read"):
        own.require_unchanged()
    path.unlink()
    with pytest.raises(Stopped, match="is gone, after it was read"):
        own.require_unchanged()


def test_a_module_of_a_package_that_was_changed_ends_the_work(tmp_path, monkeypatch):
    (tmp_path / "of_a_user").mkdir()
    file = tmp_path / "of_a_user" / "scores.py"
    file.write_text("from attnlab.scores import Dot\nplain = Dot()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own, "_loaded", {})
    own.load("of_a_user.scores:plain")
    own.require_unchanged()
    file.write_text("plain = None")
    with pytest.raises(Stopped, match="scores.py was changed after it was read"):
        own.require_unchanged()


def test_two_names_have_two_folders_and_two_looks():
    names = [
        f"my/m.py:D({x})" for x in ("rate=0.9", "rate=-0.9", "'a b'", "'a-b'", "(1,2)", "[1,2]")
    ]
    names += ["my-m.py:D(rate=0.9)", f"{'long/' * 60}m.py:D"]
    folders = {Cell({"task": "x", "model": f"window-4+{name}"}, 0).folder for name in names}
    assert len(folders) == len(names) and all(len(folder) < 128 for folder in folders)
    assert Cell({"rate": 1.5, "attention": "exact:dense"}, 0).folder == "1.5-exact-dense-seed0"

    lines = ["x, exact", "x, lsh-2", *(f"x, {name}" for name in names[:3])]
    looks = palette.of_lines(lines)
    assert list(looks) == lines and len({*looks.values()}) == 5
    assert looks["x, exact"] == palette.MECHANISMS["exact"]
    beside = ["exact", "window-4+lsh-2", "torch_sdpa", *names[:3]]
    colors = {palette.by_rounds(name, beside)[0] for name in beside}
    assert len(colors) == 5  # torch_sdpa computes exact attention
    assert palette.of_attention(names[0], [*palette.MECHANISMS, names[0]])  # none is left
