"""Settings of `length_effect`, checked before anything is made."""

import dataclasses
from collections.abc import Mapping

from attnlab.data.tasks import Copy, Reversal, SymbolTask
from attnlab.runs.flags import flag
from attnlab.training.flags import TrainFlags

TASKS: Mapping[str, type[SymbolTask]] = {"copy": Copy, "reversal": Reversal}
TRAINING, VALIDATION, TEST = range(3)  # added to the seed of the words
MODELS = ("rnn_encdec", "rnn_search")


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `length_effect`, those of every training and its own."""

    models: tuple[str, ...] = flag(
        MODELS, f"Models, a training each: {', '.join(MODELS)}.", choices=MODELS
    )
    steps: int = flag(3000, "Number of steps.", least=1)
    batch_size: int = flag(64, "Number of words in a step, over all devices.", least=1)
    learning_rate: float = flag(3e-3, "Learning rate at its peak.", above=0)
    validate_every: int = flag(
        500, "Number of steps between validations, each with a checkpoint.", least=1
    )
    log_every: int = flag(100, "Number of steps between rows of the curve.", least=1)
    task: str = flag("copy", f"Task to learn: {', '.join(TASKS)}.", choices=TASKS)
    num_symbols: int = flag(20, "Number of different symbols.", least=1)
    max_length: int = flag(
        30, "Symbols in the longest word of training; all lengths are equally frequent.", least=1
    )
    lengths: tuple[int, ...] = flag(
        (5, 10, 15, 20, 25, 30, 35, 40, 50, 60), "Numbers of symbols in the test words.", least=1
    )
    examples: int = flag(200, "Number of test words of each length.", least=1)
    embed_features: int = flag(64, "Width of the embeddings.", least=1)
    hidden_features: int = flag(128, "Width of a state, and so of the fixed vector.", least=1)

    def words(
        self, shortest: int, longest: int, part: int, seed: int, size: int | None = None
    ) -> SymbolTask:
        """Words of the task; each part (training, validation, test) has other words."""
        sized = {} if size is None else {"size": size}
        seed = 3 * seed + part
        return TASKS[self.task](self.num_symbols, shortest, longest, seed=seed, **sized)
