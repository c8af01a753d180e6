"""Settings of `duplication`, checked before anything is made."""

import dataclasses

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import flag
from attnlab.training.flags import TrainFlags, preset_flag, seeds_flag
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.schedules import fitted_warmup
from experiments.duplication.attention import MERGES, SCALES, Hashing

MODELS = ("shared", "lsh-4", "lsh-2", "lsh-1")
DRAW = 16  # examples that are hashed with the same rotations
OPTIMIZERS = {
    "adam": OptimizerSettings(schedule="cosine", warmup_steps=200, clip_norm=1.0),
    "adafactor": OptimizerSettings(optimizer="adafactor", schedule="rsqrt", warmup_steps=8000),
}

# The paper's length, for one accelerator.
_GPU = {
    "words": (511,),
    "grid": False,
    "seeds": (0,),
    "chunk_size": 64,
    "steps": 12_000,
    "validate_every": 1000,
}
# Kitaev et al. 2020, §2.1, §5 and Eq. 2–6; batch and optimizer, which they do not say of this task,
# as in the code.
_PAPER = _GPU | {
    "logit_scale": "1/sqrt(d)",
    "steps": 150_000,
    "optimizer": "adafactor",
    "learning_rate": 8000**-0.5,
}
# google/trax@8e2c6eb1, transformer_copy.gin of October 2019.
_CODE = _PAPER | {
    "words": (2047,),
    "num_symbols": 126,
    "logit_scale": "1",
    "bucket_mask": False,
    "steps": 50_000,
}
# Four times as long as the first, for two cores.
_LONGER = {
    "words": (127,),
    "grid": False,
    "seeds": (0,),
    "chunk_size": 32,
    "steps": 3000,
    "batch_size": 8,
}
PRESETS = {"cpu": {}, "longer": _LONGER, "gpu": _GPU, "paper": _PAPER, "code": _CODE}


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `duplication`, those of every training and its own."""

    without_workers = "examples are drawn, not prepared"
    presets = PRESETS

    preset: str = preset_flag(PRESETS)
    words: tuple[int, ...] = flag(
        (31,), "Numbers of symbols in a word, a table each; the grid is of the shortest.", least=1
    )
    models: tuple[str, ...] = flag(
        MODELS, f"Attentions to train with: {', '.join(MODELS)}.", choices=MODELS
    )
    grid: bool = flag(
        True,
        "Whether logit_scale, bucket_factor, bucket_mask and merge are varied too, and the "
        "attention over all pairs and the positions as well.",
    )
    seeds: tuple[int, ...] = seeds_flag((0, 1, 2))
    eval_rounds: tuple[int, ...] = flag(
        (8, 4, 2, 1), "Numbers of hash rounds to evaluate with.", least=1
    )
    examples: int = flag(
        128,
        f"Number of examples in an evaluation; each {DRAW} have rotations of their own.",
        least=DRAW,
    )
    num_symbols: int = flag(127, "Number of different symbols.", least=1)
    chunk_size: int = flag(16, "Number of slots in a chunk.", least=1)
    logit_scale: str = flag("1", f"Factor of the logits: {' or '.join(SCALES)}.", choices=SCALES)
    bucket_factor: int = flag(2, "Buckets over chunks: 2 or 1.", least=1, most=2)
    bucket_mask: bool = flag(True, "Whether a query sees its own bucket only.")
    merge: str = flag(
        "union",
        "How a pair counts that several rounds show: union (once) or multiset.",
        choices=MERGES,
    )
    steps: int = flag(1000, "Number of steps; lsh-1 has twice, plain three times as many.", least=1)
    batch_size: int = flag(16, "Number of examples in a step, over all devices.", least=1)
    optimizer: str = flag(
        "adam",
        "Optimizer: adam (cosine, 200 steps of warm-up) or adafactor (step^−½, 8000 steps of "
        "warm-up).",
        choices=OPTIMIZERS,
    )
    # 1e-3 does not leave chance in 1500 steps at words of 63 symbols.
    learning_rate: float = flag(3e-3, "Learning rate at its peak.", above=0)
    validate_every: int = flag(500, "Steps between validations, each with a checkpoint.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.examples % DRAW:
            raise Invalid(f"--examples={self.examples}: give a multiple of {DRAW}")
        for word in self.words:
            length = length_of(word)
            chunks, rest = divmod(length, self.chunk_size)
            if rest:
                raise Invalid(
                    f"--chunk_size={self.chunk_size}: an example of {word} symbols has {length} "
                    "tokens; give a divisor of that"
                )
            numbers = {hashing.bucket_factor * chunks for hashing in self.hashings()}
            if any(number % 2 and number > 1 for number in numbers):
                raise Invalid(
                    f"--chunk_size={self.chunk_size}: {length} tokens make {chunks} chunks, and as"
                    " many buckets, which are an even number; give another"
                )

    def hashing(self) -> Hashing:
        """What the table has of that which the literature leaves open."""
        return Hashing(self.logit_scale, self.bucket_factor, self.bucket_mask, self.merge)

    def hashings(self) -> list[Hashing]:
        """The table's, and those of the grid, if it is asked for."""
        return [self.hashing(), *(self.hashing().variations() if self.grid else ())]

    def optimizer_for(self, steps: int) -> OptimizerSettings:
        """The optimizer of a training of so many steps, half of them warm-up at most."""
        recipe = OPTIMIZERS[self.optimizer]
        warmup_steps = fitted_warmup(recipe.warmup_steps, steps)
        rate = self.learning_rate
        return dataclasses.replace(recipe, learning_rate=rate, warmup_steps=warmup_steps)


def length_of(word: int) -> int:
    """The number of tokens in an example, L: two words, each behind a separator."""
    return 2 * (word + 1)
