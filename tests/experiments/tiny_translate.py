"""`translate` with a model that compiles at once, as a program: what processes of a test run."""

from attnlab.runs import command_line
from experiments.translate import __main__ as experiment
from experiments.translate import training
from tests.experiments import tiny

if __name__ == "__main__":
    training.build = tiny.build
    command_line.start(experiment.main)
