"""The flags that say what a case is, in every experiment that measures attention over length."""

from __future__ import annotations

import dataclasses
from typing import Any

from attnlab.bench.case import PASSES, Case
from attnlab.runs.flags import Flags, flag

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class CaseFlags(Flags):
    """Sizes of the inputs, and how they are measured; a field is the flag of the same name."""

    lengths: tuple[int, ...] = flag(
        (512, 1024, 2048, 3072, 4096, 8192),
        "Sequence lengths, in tokens; 4k is 4096, 1m is 1024k.",
        least=1,
    )
    num_heads: int = flag(4, "Heads; the model width is num_heads * head_dim.", least=1)
    head_dim: int = flag(64, "Width of one head.", least=1)
    dtype: str = flag("float32", "Type of parameters and activations.", choices=DTYPES)
    causal: bool = flag(True, "Whether a token sees only itself and earlier ones.")
    passes: tuple[str, ...] = flag(PASSES, f"Passes: {', '.join(PASSES)}.", choices=PASSES)
    chunk_size: int = flag(64, "Chunk length of lsh, in slots of sorted order.", least=1)
    repeats: int = flag(5, "Timed samples of each case.", least=1)
    input: str | None = flag(
        None,
        "A file whose bytes are the input. Without it: the project's own sources.",
        is_path=True,
    )

    def case(self, mechanism: str, length: int, passes: str, **other: Any) -> Case:
        """One case of these sizes."""
        names = ("num_heads", "head_dim", "dtype", "causal", "chunk_size")
        sizes = {name: getattr(self, name) for name in names}
        return Case(mechanism, length, passes, **sizes | other)
