"""The choices that LSH attention leaves, as one value."""

from __future__ import annotations

import dataclasses
import math

from attnlab.core.checks import as_count, as_int, as_number, require, require_choice
from attnlab.ops.lsh.order import Geometry

__all__ = ["STRICT", "KeyOptions", "LSHOptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """How a query is compared with a key, c·⟨q, k / |k|⟩, and how often a pair counts.

    Attributes:
      union: whether a pair that several rounds show counts once: the result is then exactly the
        softmax over the union of the rounds' keys, and more rounds only bring it nearer to full
        attention. False: a pair counts as often as it is shown (a multiset), which sharpens the
        weights of near keys by an amount that depends on the number of rounds. The paper defines
        the union, its code computes the multiset. Error against full attention, 2048 noisy tokens
        in 40 clusters: the union's is 3–4 % less at 4 rounds, 20–25 % less at 16.
      logit_scale: factor c in c·⟨q_i, k_j⟩; None = 1/√H. Keys have unit norm, so the norm of a
        query is already a learned temperature.
      key_norm: norm that keys are divided by: "rms" divides by √(mean(x²) + 1e-6)·√H, "l2" by |x|,
        None by nothing. A key whose squares leave the range of float32 becomes zero: |x| above
        1e19, with "l2" also below 1e-19.
      look_back: number of chunks visited before a query's own.
    """

    union: bool = True
    logit_scale: float | None = 1.0
    key_norm: str | None = "rms"
    look_back: int = 1

    def __post_init__(self):
        if self.logit_scale is not None:
            object.__setattr__(self, "logit_scale", as_number("logit_scale", self.logit_scale))
        require_choice("union", self.union, (True, False))
        require_choice("key_norm", self.key_norm, ("rms", "l2", None))
        as_count("look_back counts chunks", self.look_back)

    def scale(self, width: int) -> float:
        """c of the logits, for heads of this width."""
        return 1 / math.sqrt(width) if self.logit_scale is None else self.logit_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSHOptions(KeyOptions):
    """LSH attention that is strictly causal; what was published is in `published`.

    A query sees the `window` nearest slots of its own bucket, so that nothing in the future changes
    what it sees. In published implementations the borders of chunks say what it sees, and these
    depend on all tokens.

    Attributes:
      union: whether a pair that several rounds show counts once; False: as often as it is shown.
      logit_scale: factor c of the logits; None = 1/√H.
      key_norm: norm that keys are divided by: "rms", "l2", or None.
      look_back: number of chunks visited before a query's own, and after it if not causal; ≥ 1.
      window: number of slots seen on each side (before only, if causal); None = the most that can
        be, look_back · chunk_size.
    """

    window: int | None = None

    def __post_init__(self):
        super().__post_init__()
        require(self.look_back >= 1, f"look_back must be at least 1; got {self.look_back}")
        require(
            self.window is None or (as_int(self.window) is not None and self.window >= 1),
            f"window counts slots, an int ≥ 1; got window={self.window!r}",
        )

    def geometry(self, chunk_size: int, causal: bool, length: int) -> Geometry:
        """The neighborhood of a slot among `length` tokens."""
        reach = self.look_back * chunk_size
        window = reach if self.window is None else self.window
        require(
            window <= reach,
            f"window must be at most look_back · chunk_size = {reach}; got {window}"
            " (raise chunk_size or look_back)",
        )
        look_back, look_ahead = self.look_back, 0 if causal else self.look_back
        if length <= chunk_size:
            # The window says who sees whom, and one chunk without neighbors holds everyone.
            chunk_size, look_back, look_ahead = length, 0, 0
        return Geometry(chunk_size, look_back, look_ahead, min(window, length), causal, self.union)


STRICT = LSHOptions()
