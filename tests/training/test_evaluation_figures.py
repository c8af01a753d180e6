"""What the figures show, read back from their axes."""

import numpy as np
import pytest

from attnlab.runs import figure_files
from attnlab.training.bleu import Bucket
from attnlab.training.evaluation_figures import Alignment, alignment_figure, length_figure

PIECES = ["▁Ein", "▁Karate", "anzug", ".", "</s>"]
LETTERS = list("3 $5$")


def weights(target, source):
    drawn = np.random.default_rng(0).random((len(target), len(source)))
    return drawn / drawn.sum(-1, keepdims=True)


def texts(labels):
    return [label.get_text() for label in labels]


def test_alignments_show_their_weights_and_tokens():
    target = ["▁A", "▁ka", "rate"]
    some = [
        Alignment(PIECES, target, weights(target, PIECES), title="first"),
        Alignment(LETTERS, list("03"), weights("03", LETTERS), known={(1, 0), (0, 4)}),
    ]
    figure = alignment_figure(some, title="both")
    first, second, bar = figure.axes
    np.testing.assert_array_equal(first.images[0].get_array()[4::8, 4::8], some[0].weights)
    np.testing.assert_array_equal(second.images[0].get_array()[4::8, 4::8], some[1].weights)
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 1)
    assert first.images[0].get_cmap()(0.0)[:3] == (0, 0, 0)  # Bahdanau's: 0 is black
    assert texts(first.get_xticklabels()) == ["Ein", "Karate", "·anzug", ".", "</s>"]
    assert texts(first.get_yticklabels()) == ["A", "ka", "·rate"]
    assert texts(second.get_xticklabels()) == ["3", "␣", "$", "5", "$"]
    assert (first.get_xlabel(), first.get_ylabel()) == ("source", "target")
    assert first.get_title(loc="left") == "first"
    assert bar.get_title(loc="left") == "attention weight"
    assert not first.patches
    assert {patch.get_xy() for patch in second.patches} == {(-0.5, 0.5), (3.5, -0.5)}
    upright = [axes.get_xticklabels()[0].get_rotation() for axes in (first, second)]
    assert upright == [90, 0]


def test_no_two_panels_touch_and_all_labels_are_inside():
    long = ["▁" + "w" * n for n in (1, 9, 4, 7, 17, 3, 2, 8, 1, 2, 5, 6, 7, 9, 3)]
    some = [Alignment(long[:s], long[:t], weights(long[:t], long[:s]), title=f"of {s}")
            for s, t in ((15, 11), (5, 15), (15, 3), (2, 2))]  # fmt: skip
    with figure_files.style():
        figure = alignment_figure(some, title="several sentences of many lengths")
        figure.canvas.draw()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
    for i, one in enumerate(boxes):
        assert figure.bbox.x0 <= one.x0 and one.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= one.y0 and one.y1 <= figure.bbox.y1
        for other in boxes[:i]:
            assert not one.overlaps(other)
    cells = [axes.get_window_extent().width / len(texts(axes.get_xticklabels()))
             for axes in figure.axes[:-1]]  # fmt: skip
    assert cells == pytest.approx([cells[0]] * 4)  # a token is as wide in every panel


def test_dollars_are_no_mathematics(tmp_path):
    odd = ["▁$x", "$^$", "▁a_b", "\n"]
    figure = alignment_figure([Alignment(odd, odd, np.eye(4), title="$x^$")])
    paths = figure_files.save({"alignment": figure}, tmp_path)
    assert paths == [*tmp_path.iterdir()] == [tmp_path / "alignment.svg"]
    assert "$x" in paths[0].read_text(encoding="utf-8")


def test_weights_of_other_tokens_are_refused():
    with pytest.raises(ValueError, match=r"\[T, S\] = \[3, 2\], got \[2, 2\]"):
        alignment_figure([Alignment("ab", "abc", np.eye(2))])


SHORT, LONG = Bucket(1, 5, 1240, 0.75, 0.7, 0.8), Bucket(6, None, 9, 0.5, 0.1, 0.9)


def test_length_figures_of_other_sentences_are_not_mixed():
    with pytest.raises(ValueError, match="b and a were measured on other sentences"):
        length_figure({"a": [SHORT, LONG], "b": [SHORT]})


def test_panels_side_by_side_have_one_size_and_fit_a_readme():
    long = ["▁" + "w" * (1 + n % 7) for n in range(26)]
    some = [Alignment(long, long[:9], weights(long[:9], long), title=f"{i}") for i in range(6)]
    figure = alignment_figure(some, columns=3)
    *panels, _ = figure.axes
    assert figure.get_figwidth() <= 8.3
    assert len({round(axes.get_position().y0, 6) for axes in panels[:3]}) == 1
    assert len({round(axes.get_window_extent().width, 3) for axes in panels}) == 1
