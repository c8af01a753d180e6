"""`implementation=Pallas(...)`: this project's kernels, with what they are tuned by."""

from __future__ import annotations

import dataclasses

from attnlab.checks import require

__all__ = ["Pallas"]


@dataclasses.dataclass(frozen=True)
class Pallas:
    """This project's kernels; `implementation="pallas"` is `Pallas()`.

    Attributes:
      block_q: queries of a tile; None = `kernels.block_sizes` for the device.
      block_k: keys of a tile; None likewise.
      interpret: simulate the kernel on the CPU, to check its numbers: that for
        `platforms.current()`, or the TPU's where that is the CPU.
    """

    block_q: int | None = None
    block_k: int | None = None
    interpret: bool = False

    def __post_init__(self):
        for name in ("block_q", "block_k"):
            size = getattr(self, name)
            require(
                size is None or (isinstance(size, int) and size > 0 and size % 8 == 0),
                f"{name} counts positions, a positive multiple of 8; got {size!r}",
            )
