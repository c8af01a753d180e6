"""What a user asks of `translate`, checked before anything is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from attnlab.runs.command_line import check_seed
from attnlab.runs.errors import Invalid
from attnlab.training.parallel import PARALLEL
from experiments.translate.recipes import PRESETS, Preset, Recipe
from experiments.translate.systems import MODELS

__all__ = ["DTYPES", "SPLITS", "Settings"]

DTYPES = ("float32", "bfloat16")
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of `translate`. None, 0 or an empty tuple = as the preset has it.

    Attributes:
      preset: a name of `PRESETS`; "" = "dates" without data, "cpu" with.
      models: names of `MODELS`.
      data_files: of training: source and target, or one TSV.
      validation_files: likewise; none = the last but one percent of the training files.
      test_files: likewise; none = the last percent.
      tfds_name: instead of files, a prepared TFDS translation set, as "wmt14_translate/de-en".
      data_dir: where TFDS keeps it.
      direction: of a TFDS set, "de-en": the language of the source, then of the target.
      cache_dir: where prepared files and tokenizers are kept.
      steps: of training, of every model; of a short one, half are the warm-up at most.
      batch_size: pairs in a step.
      learning_rate: at its peak.
      dropout_rate: of every model.
      vocab_size: ids of each vocabulary, of one side or joint, whichever a model uses.
      max_length: tokens of the longest pair.
      validate_every: steps.
      checkpoint_every: steps; 0 = validate_every.
      log_every: steps.
      beam_size: of the search; 1 = greedy.
      length_penalty: α of the search.
      parallel: "jit" or "pmap".
      devices: how many; 0 = all.
      accumulate: parts of a batch.
      num_workers: number of processes that read, encode and batch the data; 0 = a thread.
      pack: several pairs in each row of `max_length` tokens, kept apart by segments.
      dtype: of the computation.
      seed: of parameters, dropout and order.
      draw_file: a TSV of pairs whose alignments are drawn; "" = some of the test split.
      tensorboard: also write its files.
    """

    preset: str = ""
    models: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    validation_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    tfds_name: str = ""
    data_dir: str = "~/tensorflow_datasets"
    direction: str = ""
    cache_dir: str = ""
    steps: int = 0
    batch_size: int = 0
    learning_rate: float = 0.0
    dropout_rate: float = -1.0
    vocab_size: int = 0
    max_length: int = 0
    validate_every: int = 0
    checkpoint_every: int = 0
    log_every: int = 50
    beam_size: int = 0
    length_penalty: float = -1.0
    parallel: str = "jit"
    devices: int = 0
    accumulate: int = 1
    num_workers: int = 0
    pack: bool = False
    dtype: str = ""
    seed: int = 0
    draw_file: str = ""
    tensorboard: bool = False

    def __post_init__(self):
        """Checks each value.

        Raises:
          Invalid: one is not valid; the message begins with the flag.
        """
        _choice("preset", self.preset, ("", *PRESETS))
        for model in self.models:
            _choice("models", model, MODELS)
        if len(set(self.models)) < len(self.models):
            raise Invalid(f"--models={','.join(self.models)}: give each once")
        _choice("parallel", self.parallel, PARALLEL)
        _choice("dtype", self.dtype, ("", *DTYPES))
        for name, least in _LEAST.items():
            got = getattr(self, name)
            if not got >= least:  # nor is NaN
                raise Invalid(f"--{name}={got}: give at least {least}")
            if got == math.inf:
                raise Invalid(f"--{name}={got}: give a finite number")
        check_seed(self.seed)
        if not (self.dropout_rate == -1 or 0 <= self.dropout_rate < 1):
            raise Invalid(
                f"--dropout_rate={self.dropout_rate}: give 0 or more and less than 1, or -1 for "
                "the recipe's"
            )
        if not (self.length_penalty == -1 or 0 <= self.length_penalty < math.inf):
            raise Invalid(
                f"--length_penalty={self.length_penalty}: give 0 or more, or -1 for the preset's"
            )
        self._check_data()
        if self.length_penalty >= 0 and self.chosen_preset().beam_size == 1:
            raise Invalid(
                f"--length_penalty={self.length_penalty:g}: greedy search has none; leave it out, "
                "or give a larger --beam_size"
            )
        if self.pack and self.chosen_preset().models != ("transformer",):
            raise Invalid(
                "--pack: only the Transformer keeps packed pairs apart; give --models=transformer"
            )

    def _check_data(self) -> None:
        if self.tfds_name and self.data_files:
            raise Invalid(
                f"--tfds_name={self.tfds_name} and --data_files are two data sets; give one"
            )
        for name in ("data_files", "validation_files", "test_files"):
            files = getattr(self, name)
            if len(files) > 2:
                raise Invalid(
                    f"--{name}={','.join(files)}: give the source and the target file, or one TSV"
                )
            if files and not self.data_files:
                raise Invalid(f"--{name}={','.join(files)}: needs --data_files as well")
        if bool(self.validation_files) != bool(self.test_files):
            raise Invalid(
                "--validation_files and --test_files go together: give both, or none to hold out "
                "the last two percent of --data_files"
            )
        if self.direction and self.direction.count("-") != 1:
            raise Invalid(f"--direction={self.direction}: give two languages, as de-en")
        if self.direction and not self.tfds_name:
            raise Invalid(f"--direction={self.direction}: needs --tfds_name; files have one order")
        if self.data_dir != Settings.data_dir and not self.tfds_name:
            raise Invalid(f"--data_dir={self.data_dir}: needs --tfds_name, whose folder it is")
        if self.cache_dir and not self.has_text:
            raise Invalid(f"--cache_dir={self.cache_dir}: needs text; dates are not prepared")
        if self.draw_file and not self.has_text:
            raise Invalid(f"--draw_file={self.draw_file}: needs text; dates are drawn as they are")
        if self.vocab_size and not self.has_text:
            raise Invalid(f"--vocab_size={self.vocab_size}: needs text; dates are read as bytes")
        if self.has_text and self.preset == "dates":
            others = ", ".join(name for name in PRESETS if name != "dates")
            raise Invalid(f"--preset=dates is the embedded task; with data give one of: {others}")
        if self.preset not in ("", "dates") and not self.has_text:
            raise Invalid(
                f"--preset={self.preset} needs text: give --data_files=SOURCE,TARGET or --tfds_name"
            )

    @property
    def has_text(self) -> bool:
        """Whether data is given."""
        return bool(self.data_files or self.tfds_name)

    def chosen_preset(self) -> Preset:
        """The preset, with what the flags change for all models."""
        preset = PRESETS[self.preset or ("cpu" if self.has_text else "dates")]
        names = ("models", "vocab_size", "max_length", "validate_every", "beam_size", "dtype")
        changed: dict[str, Any] = {name: getattr(self, name) for name in names}
        changed["joint_vocab_size"] = self.vocab_size
        changed = {name: x for name, x in changed.items() if x}
        if self.length_penalty >= 0:
            changed["length_penalty"] = self.length_penalty
        return dataclasses.replace(preset, **changed)

    def recipe(self, model: str) -> Recipe:
        """The recipe of a model, with what the flags change."""
        recipe = self.chosen_preset().recipes[model]
        changed: dict[str, Any] = {"steps": self.steps, "batch_size": self.batch_size}
        changed = {name: x for name, x in changed.items() if x}
        optimizer = recipe.optimizer
        if self.learning_rate:
            optimizer = dataclasses.replace(optimizer, learning_rate=self.learning_rate)
        if self.steps:
            warmup_steps = min(optimizer.warmup_steps, self.steps // 2)
            optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
        changed["optimizer"] = optimizer
        if self.dropout_rate >= 0:
            changed["sizes"] = {**recipe.sizes, "dropout_rate": self.dropout_rate}
        return dataclasses.replace(recipe, **changed)


_LEAST = {
    "steps": 0,
    "batch_size": 0,
    "learning_rate": 0.0,
    "vocab_size": 0,
    "max_length": 0,
    "validate_every": 0,
    "checkpoint_every": 0,
    "log_every": 1,
    "num_workers": 0,
    "beam_size": 0,
    "devices": 0,
    "accumulate": 1,
}


def _choice(name: str, got: str, known: tuple[str, ...]) -> None:
    if got not in known:
        names = ", ".join(filter(None, known))
        raise Invalid(f"--{name}={got}: not known; the names are {names}")
