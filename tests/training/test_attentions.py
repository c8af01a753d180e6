"""What a name of a self-attention means, and what is refused."""

import dataclasses

import pytest

from attnlab import routes
from attnlab.models.transformer import TransformerConfig
from attnlab.runs.errors import Invalid
from attnlab.training import attentions

CONFIG = TransformerConfig(9, num_layers=3, width=6, hidden=7, num_heads=2, dropout_rate=0.0)
LSH = routes.LSH(num_buckets=4, chunk_size=5)
FORMS = ("exact", "additive", "window-R", "lsh-R")


def pattern(name, **options):
    return attentions.pattern(name, CONFIG, lsh=LSH, length=11, window=3, **options)


@pytest.mark.parametrize(
    ("name", "route", "causal"),
    [
        ("exact", routes.AllPairs(), None),
        ("shared", routes.LSH(1, 1, 11), None),
        ("window-2", routes.Window(2, 2), routes.Window(2, 0)),
        ("window", routes.Window(3, 3), routes.Window(3, 0)),
        ("lsh-3", dataclasses.replace(LSH, num_hashes=3), None),
        ("hard", routes.Hard(straight_through=True), None),
        *((name, routes.AllPairs(), None) for name in attentions.SCORES),
    ],
)
def test_a_name_is_a_route_and_a_score(name, route, causal):
    (one,), (other,) = pattern(name), pattern(name, causal=True)
    assert one.route == route and other.route == (causal or route)
    assert type(one.score) is attentions.SCORES.get(name, type(None))


def test_a_pattern_is_a_name_a_layer():
    found = [one.route for one in pattern("window-2+exact+lsh-3", implementation="dense")]
    assert found[:2] == [routes.Window(2, 2, "dense"), routes.AllPairs("dense")]
    assert found[2].num_hashes == 3
    assert attentions.streams("exact+window-2") == ("dropout",)
    assert attentions.streams("lsh-1+hard+lsh-2") == ("dropout", "hash", "sample")
    assert [str(layer) for layer in attentions.layers_of("lsh-4+no name")] == ["lsh-4", "no name"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "lsh",
            "--x=1: no attention 'lsh'; valid: exact, additive, window-R, lsh-R (R tokens",
        ),
        ("lsh-04", "--x=1: no attention 'lsh-04'; valid: "),
        ("window-2+lcal", "--x=1: no attention 'lcal'; valid: "),
        ("exact-2", "--x=1: no attention 'exact-2'; valid: "),
        ("full", "--x=1: no attention 'full', now called exact; valid: "),
        (
            "exact+exact+exact+exact",
            "--x=1: 'exact+exact+exact+exact' names 4 layers, a model",
        ),
    ],
)
def test_names_that_are_refused(name, said):
    with pytest.raises(Invalid) as refused:
        attentions.require_attention("--x=1", name, FORMS, 3, "; and more")
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)
    attentions.require_attention("--x=1", "window-2+lsh-3+exact", FORMS, 3)
