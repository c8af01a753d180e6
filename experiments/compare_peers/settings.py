"""What a user asks of `compare_peers`."""

from __future__ import annotations

import dataclasses

from attnlab.runs.flags import Flags, flag
from experiments.compare_peers.plan import ROWS


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `compare_peers`."""

    rows: tuple[str, ...] = flag(
        tuple(ROWS), f"Parts of the comparison: {', '.join(ROWS)}.", choices=ROWS
    )
    repeats: int = flag(7, "Number of timed turns of each pair.", least=1)
    seconds: float = flag(60.0, "Seconds for all turns of a pair.", least=0)
