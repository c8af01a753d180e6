"""Which models are compared, and what is said of their scores; `test_reports` has the verdicts."""

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


def test_models_without_a_seed_in_common_are_not_compared():
    rows = rows_of(seeds={"tuned": (5, 6)}, tuned=(0.7, 0.7), scratch=(0.6,))
    assert not experiment.gaps_of(rows, "f1") and len([*experiment.gap_sections(rows, "f1")]) == 1


def test_the_bound_of_an_effect_has_the_unit_of_its_gap():
    rows = rows_of(tuned=(0.7, 0.8, 0.9), scratch=(0.81, 0.8, 0.8))
    said = [*experiment.gap_sections(rows, "f1")][-1]
    assert "-0.3 ± 26.1 points" in said and r"\|gap\| < 26.4" in said


def test_scores_of_what_the_parameters_were_chosen_by_are_said_to_be():
    rows = rows_of(tuned=(0.7, 0.7), scratch=(0.6, 0.6))

    def said(**files):
        settings = Settings(train_file="a", dev_file="b", **files)
        return "Tested are the dev examples" in next(
            iter(experiment.Finetune(settings, None).sections(rows))
        )

    assert said() and said(test_file="b") and not said(test_file="c")
