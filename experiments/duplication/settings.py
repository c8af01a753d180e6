"""What a user asks of `duplication`, checked before anything is made; and the presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import flag
from attnlab.training.flags import TrainFlags
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.schedules import fitted_warmup
from experiments.duplication.attention import Hashing

__all__ = ["PRESETS", "Preset", "Settings", "Size"]

MODELS = ("shared", "lsh-4", "lsh-2", "lsh-1")
SCALES = {"1": False, "1/sqrt(d)": True}
MERGES = ("union", "multiset")
_ADAM = OptimizerSettings(
    learning_rate=3e-3, schedule="cosine", warmup_steps=200, clip_norm=1.0
)  # 1e-3 does not leave chance in 1500 steps at words of 63 symbols
_ADAFACTOR = OptimizerSettings(
    optimizer="adafactor", learning_rate=8000**-0.5, schedule="rsqrt", warmup_steps=8000
)


@dataclasses.dataclass(frozen=True)
class Size:
    """One task and its training.

    Attributes:
      word: number of symbols in a word.
      chunk_size: number of slots in a chunk, C.
      steps: number of steps.
      batch_size: number of examples in a step.
      seeds: seeds of the trainings.
    """

    word: int
    chunk_size: int
    steps: int
    batch_size: int = 16
    seeds: tuple[int, ...] = (0,)

    @property
    def length(self) -> int:
        """The number of tokens in an example, L: two words, each behind a separator."""
        return 2 * (self.word + 1)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A recipe; `about` says where it comes from and what it takes."""

    about: str
    sizes: tuple[Size, ...]
    optimizer: OptimizerSettings
    hashing: Hashing = Hashing()
    grid: bool = False
    num_symbols: int = 127
    validate_every: int = 1000


PRESETS = {
    "cpu": Preset(
        "short words, for two cores; the grid too",
        (Size(31, 16, 1000, seeds=(0, 1, 2)), Size(127, 32, 3000, batch_size=8)),
        _ADAM,
        grid=True,
        validate_every=500,
    ),
    "gpu": Preset("the paper's length, for one accelerator", (Size(511, 64, 12_000),), _ADAM),
    "paper": Preset(
        "Kitaev et al. 2020, §2.1, §5 and Eq. 2–6; batch and optimizer, which they do not say of "
        "this task, as in `code`",
        (Size(511, 64, 150_000),),
        _ADAFACTOR,
        Hashing(scaled=True),
    ),
    "code": Preset(
        "google/trax@8e2c6eb1, transformer_copy.gin of October 2019",
        (Size(2047, 64, 50_000),),
        _ADAFACTOR,
        Hashing(bucket_mask=False),
        num_symbols=126,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `duplication`, those of every training and its own."""

    without_workers = "examples are drawn, not prepared"

    preset: str = flag("cpu", f"Name of the recipe: {', '.join(PRESETS)}.", choices=PRESETS)
    words: tuple[int, ...] = flag(
        (), "Numbers of symbols in a word, a table each. Without it: the recipe's.", least=1
    )
    chunk_size: int | None = flag(
        None, "Number of slots in a chunk. Without it: the recipe's.", least=1
    )
    num_symbols: int | None = flag(
        None, "Number of different symbols. Without it: the recipe's.", least=1
    )
    models: tuple[str, ...] = flag(
        MODELS, f"Attentions to train with: {', '.join(MODELS)}.", choices=MODELS
    )
    eval_rounds: tuple[int, ...] = flag(
        (8, 4, 2, 1), "Numbers of hash rounds to evaluate with.", least=1
    )
    logit_scale: str | None = flag(
        None, "Factor of the logits: 1 or 1/sqrt(d). Without it: the recipe's.", choices=SCALES
    )
    bucket_factor: int | None = flag(
        None, "Buckets over chunks: 2 or 1. Without it: the recipe's.", least=1, most=2
    )
    bucket_mask: bool | None = flag(
        None, "Whether a query sees its own bucket only. Without it: the recipe's."
    )
    merge: str | None = flag(
        None,
        "How a pair counts that several rounds show: union (once) or multiset. Without it: the "
        "recipe's.",
        choices=MERGES,
    )
    grid: bool | None = flag(
        None,
        "Whether each of the last four is varied too, and full attention as well. Without it: the "
        "recipe's.",
    )
    examples: int = flag(
        128, "Number of examples in an evaluation; each 16 have rotations of their own.", least=16
    )
    seeds: tuple[int, ...] = flag(
        (),
        "Seeds of parameters, words and rotations; each model is trained once for each. Without "
        "it: the recipe's.",
        least=0,
        below=2**29,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.examples % 16:
            raise Invalid(f"--examples={self.examples}: give a multiple of 16")
        for size in self.sizes():
            chunks, rest = divmod(size.length, size.chunk_size)
            if rest:
                raise Invalid(
                    f"--chunk_size={size.chunk_size}: an example of {size.word} symbols has "
                    f"{size.length} tokens; give a divisor of that"
                )
            factors = {one.bucket_factor for one in self.hashings().values()}
            if any(factor * chunks % 2 and factor * chunks > 1 for factor in factors):
                raise Invalid(
                    f"--chunk_size={size.chunk_size}: {size.length} tokens make {chunks} chunks, "
                    "and as many buckets, which are an even number; give another"
                )

    def recipe(self) -> Preset:
        """The preset, with what the flags change."""
        preset = PRESETS[self.preset]
        names = ("grid", "num_symbols", "validate_every")
        return dataclasses.replace(preset, **self._given({n: getattr(self, n) for n in names}))

    def sizes(self) -> list[Size]:
        """The tasks, shortest words first."""
        recipes = PRESETS[self.preset].sizes
        by_word = {size.word: size for size in recipes}
        changed = self._given(
            {
                "chunk_size": self.chunk_size,
                "steps": self.steps,
                "batch_size": self.batch_size,
                "seeds": self.seeds or None,
            }
        )
        return [
            dataclasses.replace(by_word.get(word, recipes[-1]), word=word, **changed)
            for word in sorted(self.words or by_word)
        ]

    def hashing(self) -> Hashing:
        """What the table has of that which the literature leaves open."""
        changed = {
            "scaled": None if self.logit_scale is None else SCALES[self.logit_scale],
            "bucket_factor": self.bucket_factor,
            "bucket_mask": self.bucket_mask,
            "union": None if self.merge is None else self.merge == "union",
        }
        return dataclasses.replace(PRESETS[self.preset].hashing, **self._given(changed))

    def hashings(self) -> dict[str, Hashing]:
        """The table's, by the name "base", and those of the grid, if it is asked for."""
        every = self.hashing().variations()
        return every if self.recipe().grid else {"base": every["base"]}

    def optimizer(self, steps: int) -> OptimizerSettings:
        """What updates the parameters in a training of so many steps, half of them warm-up at most.

        Args:
          steps: number of steps.
        """
        recipe = PRESETS[self.preset].optimizer
        warmup_steps = fitted_warmup(recipe.warmup_steps, steps)
        given = self._given({"learning_rate": self.learning_rate})
        return dataclasses.replace(recipe, warmup_steps=warmup_steps, **given)

    @staticmethod
    def _given(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: x for name, x in values.items() if x is not None}
