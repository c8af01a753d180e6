"""What published implementations of LSH attention disagree about, as one value."""

from __future__ import annotations

import dataclasses
import math

from attnlab.core.checks import as_count, as_int, as_number, require, require_choice
from attnlab.ops.lsh.order import Geometry

__all__ = ["LUCIDRAINS", "PAPER", "STRICT", "TRAX", "LSHOptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSHOptions:
    """What published implementations disagree about. The defaults are the preset `STRICT`.

    | field       | STRICT   | TRAX (= Hugging Face) | LUCIDRAINS (reformer-pytorch) | PAPER |
    | ----------- | -------- | --------------------- | ----------------------------- | ----- |
    | strict      | True     | False                 | False                         | False |
    | same_bucket | True     | False                 | False                         | True  |
    | union       | True     | False                 | False                         | True  |
    | wrap        | False    | True                  | True                          | False |
    | logit_scale | 1        | 1                     | 1/√H                          | 1/√H  |
    | key_norm    | "rms"    | "rms"                 | "l2"                          | "l2"  |
    | look_ahead  | see below | 0                    | 0                             | 0     |

    Attributes:
      strict: whether a query sees the `window` nearest slots of its own bucket, so that nothing in
        the future changes what it sees. False: it sees its chunk and the chunks beside it, whose
        borders depend on all tokens, as in every published implementation.
      same_bucket: whether only keys in the query's bucket are visible. `strict` needs it.
      union: whether a pair that several rounds show counts once: the result is then exactly the
        softmax over the union of the rounds' keys, and more rounds only bring it nearer to full
        attention. False: a pair counts as often as it is shown (a multiset), which sharpens the
        weights of near keys by an amount that depends on the number of rounds. The paper defines
        the union, its code computes the multiset. Error against full attention, 2048 noisy tokens
        in 40 clusters: the union's is 3–4 % less at 4 rounds, 20–25 % less at 16.
      wrap: whether the chunks of all rounds form a ring, so that the first chunk of a round looks
        back at the last chunk of the round before. Published code does that; it makes a round
        depend on the others, so it is on for parity only.
      logit_scale: factor c in c·⟨q_i, k_j⟩; None = 1/√H. Keys have unit norm, so the norm of a
        query is already a learned temperature.
      key_norm: norm that keys are divided by: "rms" divides by √(mean(x²) + 1e-6)·√H, "l2" by |x|,
        None by nothing. A key whose squares leave the range of float32 becomes zero: |x| above
        1e19, with "l2" also below 1e-19.
      look_back: number of chunks visited before a query's own.
      look_ahead: number of chunks visited after a query's own. None = 0 if causal or not strict,
        else `look_back`.
      window: number of slots seen on each side (before only, if causal) where `strict`; None = the
        most that can be, look_back · chunk_size.
    """

    strict: bool = True
    same_bucket: bool = True
    union: bool = True
    wrap: bool = False
    logit_scale: float | None = 1.0
    key_norm: str | None = "rms"
    look_back: int = 1
    look_ahead: int | None = None
    window: int | None = None

    def __post_init__(self):
        scale = self.logit_scale
        if scale is not None:
            object.__setattr__(self, "logit_scale", as_number("logit_scale", scale))
        for name in ("strict", "same_bucket", "union", "wrap"):
            require_choice(name, getattr(self, name), (True, False))
        require_choice("key_norm", self.key_norm, ("rms", "l2", None))
        require(
            not self.strict or (self.same_bucket and not self.wrap),
            f"strict=True needs same_bucket=True and wrap=False; got {self.same_bucket} and"
            f" {self.wrap} (set strict=False to have chunk borders decide)",
        )
        require(
            not self.wrap or not self.same_bucket,
            "wrap=True shows only keys of other rounds' buckets, so it needs same_bucket=False;"
            " got same_bucket=True (set wrap=False)",
        )
        if self.wrap and self.union:
            raise NotImplementedError(
                "union=True with wrap=True is not supported; got both (set union=False, as the"
                " implementations that wrap do)"
            )
        as_count("look_back counts chunks", self.look_back)
        if self.look_ahead is not None:
            as_count("look_ahead counts chunks", self.look_ahead)
        require(
            not self.strict or self.look_back >= 1,
            f"strict=True needs look_back ≥ 1; got {self.look_back}",
        )
        require(
            self.window is None
            or (self.strict and as_int(self.window) is not None and self.window >= 1),
            f"window counts slots, an int ≥ 1, and needs strict=True; got window={self.window!r},"
            f" strict={self.strict}",
        )

    def scale(self, width: int) -> float:
        """c of the logits, for heads of this width."""
        return 1 / math.sqrt(width) if self.logit_scale is None else self.logit_scale

    def geometry(self, chunk_size: int, causal: bool, length: int) -> Geometry:
        """The neighborhood of a slot among `length` tokens."""
        window, look_back, look_ahead = None, self.look_back, self.look_ahead
        if self.strict:
            reach = self.look_back * chunk_size
            window = reach if self.window is None else self.window
            require(
                window <= reach,
                f"window must be at most look_back · chunk_size = {reach}; got {window}"
                " (raise chunk_size or look_back)",
            )
            wanted = 0 if causal else self.look_back
            require(
                look_ahead in (None, wanted),
                f"strict=True, causal={causal} visits look_ahead={wanted} chunks; got {look_ahead}"
                " (leave it None)",
            )
            look_ahead, window = wanted, min(window, length)
            if length <= chunk_size:
                # The window says who sees whom, and one chunk without neighbors holds everyone.
                chunk_size, look_back, look_ahead = length, 0, 0
        return Geometry(
            chunk_size,
            look_back,
            look_ahead or 0,
            window,
            causal,
            self.same_bucket,
            self.wrap,
            self.union,
        )


STRICT = LSHOptions()
TRAX = LSHOptions(strict=False, same_bucket=False, union=False, wrap=True)
LUCIDRAINS = dataclasses.replace(TRAX, logit_scale=None, key_norm="l2")
PAPER = LSHOptions(strict=False, logit_scale=None, key_norm="l2")
