"""What the gaps of a report decide, and what nothing can."""

import pytest

from attnlab.studies.study import Cell, Row
from experiments.finetune import __main__ as experiment
from experiments.finetune.settings import Settings


def rows_of(seeds=None, **models):
    """Rows of each model by its start; its scores are of the seeds 0, 1, …, or of those given."""
    return [
        Row(Cell({"start": name}, (seeds or {}).get(name, range(9))[i]), "", {"f1": x}, 9, 2, 1.0)
        for name, scores in models.items()
        for i, x in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("scores", "gap", "said"),
    [
        ((0.75, 0.8, 0.78), "+11.0 ± 2.5 points", "decided"),
        ((0.55, 0.57, 0.57), "-10.3 ± 1.4 points", "decided"),
        (
            (0.65, 0.75, 0.61),
            "+0.3 ± 16.2 points",
            "undecided: 1,000 or more seeds would decide it",
        ),
        ((0.65, 0.68, 0.67), "+0.0 ± 0.0 points", "tie"),
        ((0.6501, 0.6801), "+0.0 points", "undecided: 3 seeds would decide it"),
    ],
)
def test_a_gap_of_the_same_seeds_decides(scores, gap, said):
    *_, table = experiment.gap_sections(rows_of(tuned=scores, scratch=(0.65, 0.68, 0.67)), "f1")
    line = [x.strip() for x in table.splitlines()[2].strip("|").split("|")]
    assert line == ["tuned − scratch", str(len(scores)), gap, said]


def test_models_without_a_seed_in_common_are_not_compared():
    rows = rows_of(seeds={"tuned": (5, 6)}, tuned=(0.7, 0.7), scratch=(0.6,))
    assert not experiment.gaps_of(rows, "f1") and len([*experiment.gap_sections(rows, "f1")]) == 1


def test_scores_of_what_the_parameters_were_chosen_by_are_said_to_be():
    rows = rows_of(tuned=(0.7, 0.7), scratch=(0.6, 0.6))

    def said(**files):
        settings = Settings(train_file="a", dev_file="b", **files)
        return "Tested are the dev examples" in next(
            iter(experiment.Finetune(settings, None).sections(rows))
        )

    assert said() and said(test_file="b") and not said(test_file="c")
