"""What a name of an attention means, and what is refused."""

import dataclasses

import pytest

from attnlab import routes
from attnlab.mechanisms import attentions
from attnlab.mechanisms.attentions import KINDS, Attention, Kind, Model, Surroundings
from attnlab.models.transformer import TransformerConfig
from attnlab.modules.scores import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    GeneralScore,
    LocationScore,
)
from attnlab.runs.errors import Invalid
from attnlab.scores import Dot

CONFIG = TransformerConfig(9, num_layers=3, width=6, hidden=7, num_heads=2, dropout_rate=0.0)
LSH = routes.LSH(num_buckets=4, chunk_size=5)


def pattern(name, *, causal=False, **options):
    return attentions.pattern(name, CONFIG, Surroundings(causal, 11, LSH), **options)


@pytest.mark.parametrize(
    ("name", "route", "causal"),
    [
        ("exact", routes.AllPairs(), None),
        ("exact:dense", routes.AllPairs("dense"), None),
        ("alibi", routes.AllPairs(), None),
        ("shared", routes.LSH(1, num_buckets=1, chunk_size=11), None),
        ("window-2", routes.Window(2, 2), routes.Window(2, 0)),
        ("lsh-3", dataclasses.replace(LSH, num_hashes=3), None),
        ("lsh-3:pallas", dataclasses.replace(LSH, num_hashes=3, implementation="pallas"), None),
        ("hard", routes.Hard(straight_through=True), None),
    ],
)
def test_a_name_is_a_route(name, route, causal):
    (one,), (other,) = pattern(name), pattern(name, causal=True)
    assert one.route == route and other.route == (causal or route)
    assert one.score is None and (one.position_bias is None) == (name != "alibi")


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("additive", AdditiveScore),
        ("concat", ConcatScore),
        ("cosine", CosineScore),
        ("dot", Dot),
        ("general", GeneralScore),
        ("location", LocationScore),
    ],
)
def test_a_name_is_a_score(name, score):
    (one,) = pattern(f"{name}:blockwise")
    assert type(one.score) is score and one.route == routes.AllPairs("blockwise")


def test_a_pattern_is_a_name_a_layer():
    found = [one.route for one in pattern("window-2+exact+lsh-3", implementation="dense")]
    assert found[:2] == [routes.Window(2, 2, "dense"), routes.AllPairs("dense")]
    assert found[2].num_hashes == 3 and found[2].implementation is None
    assert attentions.streams("exact+window-2") == ("dropout",)
    assert attentions.streams("lsh-1+hard+lsh-2") == ("dropout", "hash", "sample")
    assert attentions.parse("lsh-4+exact:dense") == (
        Attention("lsh", 4),
        Attention("exact", implementation="dense"),
    )


@pytest.mark.parametrize("name", KINDS)
def test_names_are_read_as_they_are_written(name):
    kind = KINDS[name]
    for way in (None, *kind.implementations):
        attention = Attention(name, 7 if kind.counts else None, way)
        assert attentions.parse(str(attention)) == (attention,)
        assert attention.title.startswith(kind.title)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("exact", Model("exact")),
        ("reversible-lsh-4", Model("lsh-4", reversible=True)),
        ("chunked-exact", Model("exact", chunked=True)),
        ("chunked-reversible-window-2+exact", Model("window-2+exact", True, True)),
        ("reformer", Model("window-128+lsh-4", True, True)),
    ],
)
def test_a_model_is_named_by_its_layers(name, model):
    assert Model.parse(name) == model
    assert str(model) == (attentions.REFORMER if name == "reformer" else name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lsh", "--x=1: no attention 'lsh'; valid: exact, dot, general, "),
        ("window-2+lsh-04", "--x=1: no attention 'lsh-04'; valid: "),
        ("exact-2", "--x=1: no attention 'exact-2'; valid: "),
        ("location", "--x=1: no attention 'location'; valid: "),
        ("exact:fast", "--x=1: exact:fast: exact has no implementation 'fast'; valid: dense, "),
        ("shared:dense", "--x=1: shared:dense: shared has no implementation 'dense'; valid: none"),
        (
            "exact+exact+exact+exact",
            "--x=1: 'exact+exact+exact+exact' names 4 layers, a model",
        ),
    ],
)
def test_names_that_are_refused(name, said):
    with pytest.raises(Invalid) as refused:
        attentions.require_model("--x=1", name, 3)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)
    attentions.require_attention("--x=1", "window-2+lsh-3+exact", 3)


def test_a_users_kind_is_known_everywhere(monkeypatch):
    """One entry of the table: its name is in the grammar, and in every program's check."""
    mine = Kind("a chunk and the one before", lambda a, _: {"route": routes.Chunked(a.number)})
    monkeypatch.setitem(KINDS, "chunked_window", dataclasses.replace(mine, counts="positions"))
    (one, _) = pattern("chunked_window-8+exact")
    assert one.route == routes.Chunked(8)
    attentions.require_attention("--x=1", "chunked_window-8", 1)
    with pytest.raises(Invalid, match="chunked_window-R .*or positions"):
        attentions.parse("chunked_window")
