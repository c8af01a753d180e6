"""Figures of what is not kept: of nothing, and of long names; `test_reports` has the rest."""

import dataclasses

import pytest

from attnlab.bench.case import Case, Result
from experiments.compare_lengths import panels, report
from tests.bench import rows
from tests.words import hidden


def test_figures_of_nothing_are_not_drawn():
    lost = rows.row("dot", 512, status="failed", seconds=())
    absent = dataclasses.replace(lost, case=dataclasses.replace(lost.case, target="v5e"))
    assert [panels.draw([lost], name) for name in ("time", "memory")] == [None, None]
    assert report.draw_ratios([lost], "") is None and panels.draw([absent], "memory") is None


@pytest.mark.parametrize("base", ["exact", "experiments/examples/decay.py:decay"])
def test_no_word_of_the_figure_of_ratios_is_cut_or_hidden(base):
    made = [
        timed("experiments/examples/others.py:ReformerPyTorch", n, passes, base, factor)
        for n, factor in ((512, 0.01), (65536, 90.0))
        for passes in ("decode", "forward", "forward_backward")
    ]
    figure = report.draw_ratios(made, "1 × Intel(R) Xeon(R) Processor")
    assert not hidden(figure) and figure.get_figwidth() <= 7


def timed(name, length, passes, base, factor) -> Result:
    case = Case(name, length, passes, against=base)
    return Result(case, "ok", seconds=(factor, 1.1 * factor), base_seconds=(1.0, 1.0))
