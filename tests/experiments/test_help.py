"""What --help says of the flags that all trainings share is true of each of them."""

import dataclasses
import importlib
import importlib.util
import pkgutil

import pytest

import experiments
from attnlab.training.flags import TrainFlags

WITH_RECIPES = {"translate"}
TRAINING = [
    name
    for _, name, is_package in pkgutil.iter_modules(experiments.__path__)
    if is_package
    and importlib.util.find_spec(f"experiments.{name}.settings")
    and issubclass(importlib.import_module(f"experiments.{name}.settings").Settings, TrainFlags)
]


@pytest.mark.parametrize("name", TRAINING)
def test_who_has_no_recipes_does_not_speak_of_them(name):
    settings = importlib.import_module(f"experiments.{name}.settings").Settings
    said = " ".join(str(field.metadata["flag"]) for field in dataclasses.fields(settings))
    assert ("the recipe's" in said) == (name in WITH_RECIPES)


def test_trainings_are_found():
    assert {"finetune", "language_model", "pretrain", *WITH_RECIPES} <= {*TRAINING}
