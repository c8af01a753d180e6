"""Pictures: what is drawn is what masks say, what scores weigh and what engines visit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import biases, masks, routes, scores
from attnlab.mechanisms import drawing
from tests.daily import daily

LENGTH = 13


def drawn(**parts) -> dict[str, np.ndarray]:
    """The numbers in the pixels of each panel, NaN where nothing is seen."""
    panels = {}
    for axes in attnlab.draw(length=LENGTH, **parts).figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        pixels = np.ma.filled(axes.images[0].get_array(), np.nan)
        cells = pixels.reshape(LENGTH, 8, LENGTH, 8)
        assert np.array_equal(cells, np.broadcast_to(cells[:, :1, :, :1], cells.shape), True)
        panels[axes.get_title("left")] = cells[:, 0, :, 0]
    return panels


def seen(panel: np.ndarray) -> np.ndarray:
    return ~np.isnan(panel)


def example() -> tuple[jax.Array, jax.Array]:
    return drawing._example(LENGTH, (1,))


@pytest.mark.parametrize(
    "mask",
    [
        masks.Causal(),
        masks.Window(3, 1) & masks.Padding(9),
        masks.Chunks(4),
        masks.Segments(jnp.arange(LENGTH) // 5),
    ],
    ids=lambda mask: type(mask).__name__,
)
def test_a_mask_is_what_it_says_of_each_pair(mask):
    of_pairs = jax.vmap(jax.vmap(mask.visible, (None, 0)), (0, None))
    says = jax.jit(of_pairs)(np.arange(LENGTH), np.arange(LENGTH))
    np.testing.assert_array_equal(seen(drawn(mask=mask)["mask"]), says)


def test_of_examples_and_heads_the_first_is_drawn():
    mask = masks.Padding(jnp.array([4, 9]))
    panels = drawn(mask=mask, bias=biases.alibi(2, LENGTH, LENGTH))
    assert {name: seen(panel).any(0).sum() for name, panel in panels.items()} == {
        "mask": 4,
        "bias": LENGTH,
        "together": 4,
    }
    distance = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    np.testing.assert_allclose(panels["bias"], -distance / 16)


ROUTES = [
    routes.Window(3, 1),
    routes.Chunked(4),
    routes.LSH(num_hashes=2, chunk_size=3, num_buckets=4, implementation="sorted"),
    routes.LSH(num_hashes=2, chunk_size=3, num_buckets=4, shared_qk=False),
    routes.LSH(num_buckets=4, hash_before_rotary=True, centering="learned"),
]


@pytest.mark.parametrize(
    "route",
    daily(ROUTES, *ROUTES[:2], ROUTES[-1]),
    ids=["window", "chunks", "lsh", "lsh-cross", "lsh-centered"],
)
def test_a_route_is_what_its_engine_visits(route):
    q, k = example()
    keywords = {"hash_inputs": q, "center": jnp.zeros((1, 16))}
    keywords = {name: x for name, x in keywords.items() if name in route.hash_keywords}

    def context(v, mask):  # the values' gradients are the weights
        return route(scores.Dot(), q, q if route.shares_qk else k, v, mask=mask, **keywords)[
            :, 0, 0
        ]

    for mask, panel in ((None, "route"), (masks.Causal(), "together")):
        weights = jax.jit(jax.jacobian(context))(np.ones((LENGTH, 1, 1), "f"), mask)
        visited = np.asarray(weights)[..., 0, 0] != 0
        assert visited.any() and not visited.all()
        np.testing.assert_array_equal(seen(drawn(route=route, mask=mask)[panel]), visited)


@pytest.mark.parametrize("score", [scores.Dot(), scores.Cosine(3.0), attnlab.AdditiveScore()])
def test_a_score_is_its_weights(score):
    q, k = example()
    value = (
        score
        if isinstance(score, scores.Score)
        else score.init_with_output(jax.random.key(0), q, k)[0]
    )
    expected = attnlab.attention_weights(value, q, k)[0]
    panels = drawn(score=score)
    assert list(panels) == ["score"]
    np.testing.assert_allclose(panels["score"], expected, rtol=1e-6)


def test_the_score_is_high_within_a_kind():
    panel = drawn(score=scores.Dot())["score"]
    q = np.asarray(example()[0])[:, 0]
    alike = np.linalg.norm(q - q[:, None], axis=-1) < 2.5  # noise of 1/4, twice, in 16 numbers
    assert panel[alike].mean() > 5 * panel[~alike].mean()


def test_a_notebook_shows_crisp_pixels_and_the_same_file_again():
    first, second = (attnlab.draw(mask=masks.Causal())._repr_svg_() for _ in range(2))
    assert first == second and first.startswith("<?xml")
    assert "image-rendering:pixelated" in first and first.count("<image") == 1


def test_hard_attention_takes_one_key_a_query():
    assert (seen(drawn(route=routes.Hard())["route"]).sum(1) == 1).all()


def ahead(q, k, v, *, mask=None):
    return v.at[:, 3].add(v[:, 7] ** 2)


@pytest.mark.parametrize(
    "attention",
    [
        lambda q, k, v, *, mask: attnlab.dot_product_attention(q, k, v, mask=mask),
        attnlab.MultiHeadAttention(num_heads=2),
    ],
    ids=["function", "module"],
)
@pytest.mark.parametrize("mask", [masks.Window(3, 1), masks.Padding(jnp.array([9, 4]))])
def test_an_attention_is_probed(attention, mask):
    says = np.array(mask.as_array(LENGTH, LENGTH)).reshape(-1, LENGTH, LENGTH)[0]
    moves = seen(drawn(attention=attention, mask=mask)["attention"])
    if isinstance(attention, attnlab.MultiHeadAttention):  # the query is in the output
        says |= np.diag(says.any(1))
    np.testing.assert_array_equal(moves, np.broadcast_to(says, moves.shape))


def test_a_leak_is_seen_however_small():
    moves = drawing.draw_moves(np.array([[1.0, 1e-9], [0.5, 1.0]])).figure.axes[0].images[0]
    assert moves.norm(1e-9) <= 0 < moves.norm(1e-3) < moves.norm(0.5) == pytest.approx(0.95, 0.01)
    moves = seen(drawn(attention=ahead, mask=masks.Causal())["attention"])
    assert moves[3, 7] and moves.sum() == LENGTH + 1
