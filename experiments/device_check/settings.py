"""The settings of `device_check`: one value a flag, checked before anything starts."""

import dataclasses
import json
import math
from typing import Any

from attnlab.runs.command_line import from_plain
from attnlab.runs.errors import Invalid
from experiments.device_check.cases import IMPORTANT, MECHANISMS

PARTS = ("correctness", "speed")
K = 1024


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to do; a field is the flag of the same name, and `HELPS` says what it means."""

    parts: tuple[str, ...] = PARTS
    mechanisms: tuple[str, ...] = MECHANISMS
    lengths: tuple[int, ...] = tuple(n * K for n in (1, 2, 4, 8, 16, 32, 64, 256, 1024))
    tokens: int = 64 * K
    minutes: float = 8.0
    repeats: int = 7
    case_seconds: float = 20.0
    allow_cpu: bool = False

    def __post_init__(self) -> None:
        """Checks what can be checked without a device.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        for name, valid in (("parts", PARTS), ("mechanisms", MECHANISMS)):
            given = getattr(self, name)
            wrong = [one for one in given if one not in valid]
            if wrong or not given:
                what = f"no {wrong[0]!r}" if wrong else "nothing is named"
                raise Invalid(f"--{name}={','.join(given)}: {what}; valid: {', '.join(valid)}")
        for name in ("lengths", "tokens", "minutes", "repeats", "case_seconds"):
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not numbers or not all(0 < n < math.inf for n in numbers):
                raise Invalid(f"--{name}={_plain(value)}: give finite numbers above 0")
        if self.parts == ("speed",) and set(self.mechanisms) != set(MECHANISMS):
            untimed = [name for name in self.mechanisms if name not in IMPORTANT]
            if untimed:
                raise Invalid(
                    f"--mechanisms={','.join(self.mechanisms)}: {untimed[0]} is checked but not "
                    f"timed; with --parts=speed give some of: {', '.join(IMPORTANT)}"
                )
        if "speed" not in self.parts and self.repeats != Settings.repeats:
            raise Invalid(f"--repeats={self.repeats}: nothing is timed without the part speed")
        for n in self.lengths:
            if n <= self.tokens and self.tokens % n:
                raise Invalid(
                    f"--lengths={_plain(self.lengths)}: {n} does not divide --tokens={self.tokens}"
                    "; give lengths that do, or are longer"
                )

    def as_json(self) -> dict[str, Any]:
        """Plain values, lists for tuples; `from_json` is the inverse."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Settings from plain values.

        Raises:
          Invalid: they are of another version.
        """
        return from_plain(cls, values)


HELPS = {
    "parts": f"Which: {', '.join(PARTS)}.",
    "mechanisms": f"Which to check: {', '.join(MECHANISMS)}. The first four are timed as well.",
    "lengths": "Sequence lengths to time, in tokens. One above --tokens is a single sequence, of "
    "LSH, blockwise and the platform's flash attention only.",
    "tokens": "Batch × length; the batch of a length is what divides it.",
    "minutes": "In all. What is not done by then is missing in the report; --resume goes on.",
    "repeats": "Timed samples of each program, taken in turns.",
    "case_seconds": "A program whose one call is predicted to take longer is not run, and a row.",
    "allow_cpu": "Go on where JAX finds no accelerator; give small --lengths and --tokens.",
}


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
