"""`translate` with a tiny model and few dates, as a program: what processes of a test run."""

from attnlab.data import dates
from attnlab.runs import command_line, figure_files
from experiments.translate import __main__ as experiment
from tests.experiments import tiny

if __name__ == "__main__":
    experiment.build = tiny.build
    dates.Dates = tiny.few_dates
    figure_files.save = tiny.save_nothing
    command_line.start(experiment.main)
