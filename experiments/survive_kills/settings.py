"""What a user asks of `survive_kills`."""

import dataclasses

from attnlab.runs.flags import Flags, flag, seed_flag
from attnlab.runs.palette import MODEL_TITLES


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `survive_kills`."""

    kills: int = flag(20, "Number of kills.", least=1)
    longest: float = flag(
        5.0, "Seconds after the first step at which a kill comes at the latest.", least=0
    )
    steps: int = flag(2400, "Number of steps of the training.", least=1)
    model: str = flag(
        "rnn_search", f"Name of the model: {', '.join(MODEL_TITLES)}.", choices=MODEL_TITLES
    )
    processes: int = flag(
        1, "Number of processes of the training. Of several, one is struck at a time.", least=1
    )
    seed: int = seed_flag("Seed of the moments of the kills.")
