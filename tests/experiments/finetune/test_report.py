"""What the report of `finetune` decides, and what it says where nothing can be."""

import random

import pytest

from attnlab.training.pretrained import BertSizes, Pretrained
from experiments.finetune import report
from experiments.finetune.__main__ import begun_from
from experiments.finetune.report import Row


def rows_of(scratch=(), seeds=None, **tuned):
    every = {("scratch", ""): scratch} | {("tuned", name): x for name, x in tuned.items()}
    return [
        Row(start, name, (seeds or {}).get(name, range(9))[i], 9, 2, 1.0, {"accuracy": x})
        for (start, name), scores in every.items()
        for i, x in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ((0.75, 0.8, 0.78), "Pre-training helps: mlm is +11.0 ± 2.5 points of accuracy from"),
        ((0.55, 0.57, 0.57), "Pre-training harms: mlm is -10.3 ± "),
        ((0.65, 0.75, 0.61), "No difference is seen: mlm is "),
        (
            (0.6501, 0.6801),
            "Not decided: mlm is +0.0 points (fewer than 3 seeds decide nothing) of",
        ),
    ],
)
def test_a_gap_of_the_same_seeds_decides(scores, said):
    assert report.answer(rows_of((0.65, 0.68, 0.67), mlm=scores)).startswith(said)


def test_the_figure_has_a_line_of_seeds_and_one_of_their_mean_for_each_model():
    (axes,) = report.figure(rows_of((0.65, 0.68, 0.67), mlm=(0.75, 0.8, 0.78))).axes
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [3, 2] * 2


def test_equal_models_are_seldom_told_apart():
    rng = random.Random(0)

    def drawn():
        return [0.5 + rng.gauss(0, 0.02) for _ in range(3)]

    runs = [report.gaps_of(rows_of(drawn(), a=drawn(), b=drawn(), c=drawn())) for _ in range(300)]
    assert sum(any(gap.sign for gap in gaps.values()) for gaps in runs) < 20  # 5 % of any


def test_what_was_not_compared_is_not_said_to_be_alike():
    one = rows_of((0.6,), a=(0.7,), b=(0.8,))
    assert report.answer(one) == (
        "Not decided: b is +20.0 points (fewer than 3 seeds decide nothing) of accuracy from "
        "scratch; between the pre-trainings no difference is decided: fewer than 3 seeds decide "
        "nothing."
    )
    apart = rows_of((), seeds={"b": (5, 6)}, a=(0.7, 0.7), b=(0.8, 0.8))
    assert report.answer(apart) == (
        "tuned: a: 70.0% ± 0.0% accuracy; tuned: b: 80.0% ± 0.0% accuracy."
    )
    apart = rows_of((0.6,), seeds={"a": (5,)}, a=(0.7,))
    assert report.answer(apart) == "scratch: 60.0% accuracy; tuned: a: 70.0% accuracy."


def test_the_spread_is_explained_row_by_row():
    def models(*seeds):
        return {seed: Pretrained("", seed, BertSizes(1, 8, 8, 2, 8), None) for seed in seeds}

    assert begun_from({}) == ""
    assert begun_from({"A": models(0, 1)}).startswith("Each seed begins with a model")
    assert begun_from({"A": models(0)}).startswith("All seeds of a row begin with one")
    both = begun_from({"A": models(0, 1, 2), "B": models(0)})
    assert both.startswith("Each seed of A begins") and "All seeds of B begin with one" in both
