"""Queries and keys of a tile, for each kind of device: one small table.

None of these was measured on a device yet: they are what compiles with room to spare. A row that
was measured says on what.
"""

from __future__ import annotations

from attnlab.ops.kernels.options import Pallas
from attnlab.platforms import Platform

__all__ = ["block_sizes"]

# (platform, score) -> queries, keys
_ALL_PAIRS = {
    ("tpu", "dot"): (512, 512),
    ("tpu", "additive"): (512, 512),
    ("cuda", "dot"): (128, 64),
    ("cuda", "additive"): (64, 64),
}
_BAND = {"tpu": 128, "cuda": 64}  # of a narrow band, as LSH's, both sides


def block_sizes(
    options: Pallas, platform: Platform, score: str, reach: tuple[int | None, int | None]
) -> tuple[int, int]:
    """What the user gave, or else the table's.

    Args:
      options: the user's.
      platform: what the kernel is for.
      score: "dot" or "additive".
      reach: how far before and after itself a query sees; None = everything.
    """
    name = "cuda" if platform.name == "cuda" else "tpu"
    queries, keys = _ALL_PAIRS[name, score]
    if None not in reach and sum(side or 0 for side in reach) <= queries:
        queries = keys = _BAND[name]
    return options.block_q or queries, options.block_k or keys
