"""This project's Pallas kernels: `implementation=Pallas(...)` and what it chooses for a device.

One formulation serves the dot product and the additive score, exact and LSH attention: each query
sees one range of keys (`ranges`), in the order of positions (`exact`) or in the sorted order of LSH
(`attnlab.ops.lsh.kernel`). `tiles` holds the mathematics of one tile; `tpu` and `gpu` move tiles
through the memories of their device.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType

from attnlab.core.checks import as_int, require
from attnlab.devices.platforms import Platform


@dataclasses.dataclass(frozen=True)
class Pallas:
    """This project's kernels; `implementation="pallas"` is `Pallas()`.

    Attributes:
      block_q: number of queries in a tile; None = `block_sizes` for the device.
      block_k: number of keys in a tile; None = `block_sizes` for the device.
      interpret: whether to simulate the kernel on the CPU, to check its numbers: the kernel for
        `platforms.current()`, or the TPU's where that is the CPU.
    """

    block_q: int | None = None
    block_k: int | None = None
    interpret: bool = False

    def __post_init__(self):
        for name in ("block_q", "block_k"):
            if (given := getattr(self, name)) is None:
                continue
            size = as_int(given)
            require(
                size is not None and size > 0 and size % 8 == 0,
                f"{name} counts positions, a positive multiple of 8; got {given!r}",
            )
            object.__setattr__(self, name, size)


# (platform, score) -> queries, keys of a tile: what compiles with room to spare. On an H200 other
# tiles of all pairs, 64 or 128 on a side, took 0.94 to 1.03 of the time, and a band's of 128
# 1.4 to 1.5 times as long; a TPU was not measured.
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
    """Queries and keys of a tile: what the user gave, or else the table's.

    Args:
      options: options that the user gave.
      platform: accelerator that the kernel is for.
      score: name of the score, "dot" or "additive".
      reach: numbers of keys before and after itself that a query sees; None = everything.
    """
    name = "cuda" if platform.name == "cuda" else "tpu"
    queries, keys = _ALL_PAIRS[name, score]
    if None not in reach and sum(side or 0 for side in reach) <= queries:
        queries = keys = _BAND[name]
    return options.block_q or queries, options.block_k or keys


def why_not_on(platform: Platform, interpret: bool) -> str | None:
    """Why there is no kernel for this platform; None where there is."""
    if platform.name == "tpu" or (platform.name == "cpu" and interpret):
        return None
    if platform.name != "cuda":
        return f"is for TPU and NVIDIA GPU, not for {platform.name}"
    if platform.capability is None or platform.capability[0] != 9:
        return f"is for NVIDIA's compute capability 9 (H100, H200), not for {platform.kind}"
    return None


def kernels_for(platform: Platform) -> ModuleType:
    """`gpu` or `tpu`; imported here, because `import attnlab` does without Pallas."""
    if platform.name == "cuda":
        from attnlab.ops.kernels.pallas import gpu

        return gpu
    from attnlab.ops.kernels.pallas import tpu

    return tpu
