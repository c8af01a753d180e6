"""What a user asks of `device_check`, checked before anything starts."""

import dataclasses
from collections.abc import Collection

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, written
from experiments.device_check.cases import IMPORTANT, MECHANISMS

PARTS = ("correctness", "speed")


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `device_check`."""

    parts: tuple[str, ...] = flag(PARTS, f"Parts to do: {', '.join(PARTS)}.", choices=PARTS)
    mechanisms: tuple[str, ...] = flag(
        MECHANISMS,
        f"Mechanisms to check: {', '.join(MECHANISMS)}. The first four are timed as well.",
        choices=MECHANISMS,
    )
    lengths: tuple[int, ...] = flag(
        tuple(n * 1024 for n in (1, 2, 4, 8, 16, 32, 64, 256, 1024)),
        "Sequence lengths to time, in tokens; 4k is 4096. Above --tokens: one sequence, with "
        "only LSH, blockwise and the platform's flash attention.",
        least=1,
    )
    tokens: int = flag(65536, "Tokens of a batch: batch size × length.", least=1)
    minutes: float = flag(
        8.0,
        "Minutes in all. Jobs not done by then are missing in the report; --resume goes on.",
        above=0,
    )
    repeats: int = flag(7, "Number of timed samples of each program, taken in turns.", least=1)
    case_seconds: float = flag(
        20.0,
        "Seconds that a program may take. It is not run if one call would take longer, by shorter "
        "lengths.",
        above=0,
    )
    allow_cpu: bool = flag(
        False, "Whether to go on without an accelerator; give small --lengths and --tokens."
    )

    def __post_init__(self) -> None:
        """Checks what can be checked without a device.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        super().__post_init__()
        for n in self.lengths:
            if n <= self.tokens and self.tokens % n:
                raise Invalid(
                    f"--lengths={written(self.lengths)}: {n} does not divide "
                    f"--tokens={self.tokens}; give lengths that do, or are longer"
                )

    def check_named(self, named: Collection[str]) -> None:
        if "speed" not in self.parts and "repeats" in named:
            raise Invalid(
                f"--repeats={self.repeats}: nothing is timed with --parts={written(self.parts)}; "
                "leave it out, or add the part speed"
            )
        untimed = [name for name in self.mechanisms if name not in IMPORTANT]
        if "correctness" not in self.parts and "mechanisms" in named and untimed:
            raise Invalid(
                f"--mechanisms={written(self.mechanisms)}: {untimed[0]} is checked but not "
                f"timed; with --parts=speed give some of: {', '.join(IMPORTANT)}"
            )
