"""Settings of `translate`, checked before anything is made."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, flag, format_value
from attnlab.training.flags import TrainFlags, preset_flag
from attnlab.training.loop import LoopSettings
from attnlab.training.schedules import fitted_warmup
from experiments.translate.models import MODELS
from experiments.translate.recipes import PRESETS, RECIPES, VOCAB_SIZES, Recipe
from experiments.translate.variants import Variant, require_fits, variants

SPLITS = ("train", "validation", "test")
_TEXT = "data_files or tfds_name"
TFDS = "~/tensorflow_datasets"  # the folder in which TFDS keeps its data sets


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `translate`: those of every training, and its own."""

    presets = PRESETS

    preset: str = preset_flag(PRESETS)
    models: tuple[str, ...] = flag(
        ("rnn_search", "rnn_encdec"),
        f"Names of the models to train: {', '.join(MODELS)}.",
        choices=MODELS,
    )
    validate_every: int = flag(
        200, "Number of steps between validations, each with a checkpoint.", least=1
    )
    data_files: tuple[str, ...] = flag(
        (),
        "Text to train on: SOURCE,TARGET with aligned lines, or one TSV; .gz too.",
        is_path=True,
        not_with="preset=dates",
    )
    validation_files: tuple[str, ...] = flag(
        (),
        "Text to validate on, as in --data_files. Without it: 1 % of --data_files before the last.",
        is_path=True,
        needs=("data_files", "test_files"),
    )
    test_files: tuple[str, ...] = flag(
        (),
        "Text to test on, as in --data_files. Without it: the last 1 % of --data_files.",
        is_path=True,
        needs=("data_files", "validation_files"),
    )
    tfds_name: str | None = flag(
        None,
        "Name of a prepared TFDS data set, such as wmt14_translate/de-en, in place of files.",
        not_with=("data_files", "preset=dates"),
    )
    data_dir: str | None = flag(
        None, f"Folder of the TFDS data sets. Without it: {TFDS}.", needs="tfds_name"
    )
    direction: str | None = flag(
        None,
        "Languages of the TFDS data set, SOURCE-TARGET: de-en. Without it: its own order.",
        needs="tfds_name",
    )
    dropout_rate: float | None = flag(
        None, "Dropout rate of every model. Without it: the recipe's.", least=0, below=1
    )
    vocab_size: int | None = flag(
        None,
        "Size of each vocabulary: the Transformer has a joint one, other models one a side. "
        "Without it: the preset's.",
        least=1,
        needs=_TEXT,
    )
    max_length: int = flag(
        40, "Tokens of the longest pair to train on; a translation may have 20 more.", least=1
    )
    pad_to: int = flag(
        16,
        "Number to a multiple of which the lengths of batches are rounded up; each length is "
        "compiled once.",
        least=1,
    )
    beam_size: int = flag(
        1,
        "Width of the beam search; 1 is greedy. A resumed run may have another: what it has "
        "trained translates again, as further rows.",
        least=1,
    )
    length_penalty: tuple[float, ...] = flag(
        (1.0,),
        "Exponent of the search's length penalty; of several, that with the best translations of "
        "the validation split.",
        least=0,
        not_with="beam_size=1",
    )
    average: int | None = flag(
        None,
        "Number of the last checkpoints, the mean of whose parameters is tested; 1 is the last "
        "alone. Without it: the checkpoint with the smallest validation loss.",
        least=1,
    )
    pack: bool = flag(
        False, "Whether a row of --max_length tokens has several pairs; the Transformer only."
    )
    dtype: str = flag("float32", "Type of the activations.", choices=DTYPES)
    set: tuple[str, ...] = flag(
        (),
        "Sizes of a model in place of its recipe's, MODEL.FIELD=VALUE; a list trains the model "
        "with each of its values: luong.score=dot,concat; transformer.attention names an attention "
        "or a pattern. May be given several times.",
        repeated=True,
    )
    reinforce: float | None = flag(
        None,
        "Factor of REINFORCE's term for hard attention (rnn_search.attention=hard). Without it: "
        "0.03, about one over the words of a sentence, whose sum the term is.",
        least=0,
    )
    entropy: float | None = flag(
        None, "Factor of the entropy of hard attention's weights. Without it: 0.01.", least=0
    )
    doubly_stochastic: float | None = flag(
        None,
        "Factor of RNNsearch's penalty for source words that are not read once (Xu et al. 2015). "
        "Without it: none.",
        least=0,
    )
    gradient_batches: int | None = flag(
        None,
        "Number of validation batches, the shortest ones, over which the variance of the gradient "
        "is measured at each validation. Without it: none.",
        least=2,
    )
    draw_file: str | None = flag(
        None,
        "TSV of pairs to draw the alignments of. Without it: some of the test split.",
        is_path=True,
        needs=_TEXT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("data_files", "validation_files", "test_files"):
            files = getattr(self, name)
            if len(files) > 2:
                raise Invalid(
                    f"--{name}={format_value(files)}: give the source and the target file, or "
                    "one TSV"
                )
        if self.direction and not re.fullmatch("[^-]+-[^-]+", self.direction):
            raise Invalid(f"--direction={self.direction}: give two languages, as de-en")
        for variant in self.variants():
            if variant.changed:
                require_fits(variant, self.recipe(variant).sizes, self.max_length)
            self.loop_of(variant, seed=0)

    @classmethod
    def implied(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The preset's values; where data are named and no preset is, those of the preset cpu."""
        of_data = named.get("data_files") or named.get("tfds_name")
        preset = {"preset": "cpu"} if of_data and "preset" not in named else {}
        return {**preset, **super().implied({**preset, **named})}

    def unmet_needs(self) -> Mapping[str, str]:
        """Of what some models alone have, those models."""
        unmet = dict(super().unmet_needs())
        recipes = [self.recipe(variant) for variant in self.variants()]
        if self.preset != "dates" and not self.has_text:
            unmet["preset"] = "--data_files=SOURCE,TARGET or --tfds_name"
        if self.models != ("transformer",):
            unmet["pack"] = "--models=transformer, which alone keeps packed pairs apart"
        if self.models != ("rnn_search",):
            unmet["doubly_stochastic"] = "--models=rnn_search, which alone has the penalty"
        if not any(recipe.sizes.get("attention") == "hard" for recipe in recipes):
            for name in ("reinforce", "entropy"):
                unmet[name] = "hard attention, --set=rnn_search.attention=hard"
        if set(self.models) == {"rnn_encdec"}:
            unmet["draw_file"] = "one of --models with attention"
        if all("dropout_rate" in dict(variant.changed) for variant in self.variants()):
            unmet["dropout_rate"] = "one of --models whose rate --set does not say"
        return unmet

    @property
    def search(self) -> str:
        """The name of the search in its rows; "" = greedy.

        >>> Settings(beam_size=4, length_penalty=(0.6, 1.0)).search
        'beam 4, best penalty of 0.6,1'
        """
        if self.beam_size == 1:
            return ""
        name, penalties = f"beam {self.beam_size}", format_value(self.length_penalty)
        if len(self.length_penalty) > 1:
            return f"{name}, best penalty of {penalties}"
        return name if self.length_penalty == (1.0,) else f"{name}, penalty {penalties}"

    @property
    def has_text(self) -> bool:
        """Whether the flags name data: files or a TFDS data set."""
        return bool(self.data_files or self.tfds_name)

    def vocab_size_of(self, *, joint: bool) -> int:
        """The number of ids of the vocabulary that both sides share, or of one side's."""
        return self.vocab_size or VOCAB_SIZES[self.preset][joint]

    def variants(self) -> list[Variant]:
        """The models to train, with other sizes where --set asks for them."""
        return variants(self.models, self.set)

    def loop_of(self, variant: Variant, *, seed: int) -> LoopSettings:
        """How long a model is trained, how often what is done, and what is kept.

        Raises:
          ValueError: more checkpoints are averaged than there are, or of a training whose last step
            is not known.
        """
        loop = self.loop(steps=self.recipe(variant).steps, seed=seed)
        return dataclasses.replace(loop, average=self.average)

    def recipe(self, variant: Variant) -> Recipe:
        """The recipe of a model, with what the flags change."""
        recipe = RECIPES[self.preset][variant.model]
        optimizer = dataclasses.replace(
            recipe.optimizer, **_drop_none({"learning_rate": self.learning_rate})
        )
        if self.steps is not None and optimizer.warmup_steps > 0:
            warmup_steps = fitted_warmup(optimizer.warmup_steps, self.steps)
            optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
        sizes = {**recipe.sizes, **_drop_none({"dropout_rate": self.dropout_rate})}
        sizes |= dict(variant.changed)
        changed = _drop_none({"steps": self.steps, "batch_size": self.batch_size})
        return dataclasses.replace(recipe, optimizer=optimizer, sizes=sizes, **changed)


def _drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in values.items() if x is not None}
