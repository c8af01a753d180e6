"""Settings of `check`."""

import dataclasses

from attnlab.mechanisms import own
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag
from attnlab.testing import CONTRACTS, subject_of


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `check`."""

    mechanisms: tuple[str, ...] = flag(
        (),
        f"What to check, also without the flag's name: {own.FORM}; or an attention of attnlab.",
        repeated=True,
    )
    contracts: tuple[str, ...] = flag(
        tuple(CONTRACTS), "Contracts to hold it to.", choices=tuple(CONTRACTS)
    )
    seed: int = seed_flag("Seed of the arrays.")
    json: bool = flag(
        False, "Whether standard output has the verdicts alone, as JSON; all else is on the other."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mechanisms:
            raise Invalid("give what to check: launch/local check mine.py:Decay")
        for name in self.mechanisms:
            subject_of(name)
