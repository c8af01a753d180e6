"""What is compared, and what came out.

Everything is float32 (in the row `accuracy` bfloat16 as well), batch 1, on the CPU. Both sides are
bare functions without projections; attnlab's is the one that `mechanisms` builds with `ops_only`.
In the row `training` they are whole training steps.
"""

import dataclasses
import statistics

from attnlab.bench.case import Case

OURS = "attnlab"
TRAX, LUCIDRAINS = "attnlab (trax)", "attnlab (lucidrains)"  # presets, for comparing the values
KERAS, FLAX, JAX_NN = "Keras AdditiveAttention", "Flax MHA", "jax.nn"
SDPA = "torch SDPA"
HUGGING_FACE_LM = "Hugging Face ReformerModelWithLMHead"
HUGGING_FACE, REFORMER_PYTORCH = "Hugging Face LSHSelfAttention", "reformer-pytorch"
PACKAGES = {  # program -> package to install, where jax and flax do not have it
    SDPA: "torch",
    HUGGING_FACE_LM: "transformers",
    KERAS: "keras",
    HUGGING_FACE: "transformers",
    REFORMER_PYTORCH: "reformer-pytorch",
}
CROSSOVER_BY = 2048  # the length at which LSH is to be faster than torch's dense attention


@dataclasses.dataclass(frozen=True)
class Side:
    """One program on one case."""

    program: str
    case: Case

    def __str__(self) -> str:
        return f"{self.program}, n = {self.case.length}"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sides to compare, with bounds to stay below.

    Attributes:
      row: name on the command line, a key of `plan.ROWS`.
      ours: attnlab's side.
      peer: side to compare with; in the rows on growth, attnlab at a quarter of the length.
      checked: sides whose values must agree first; None where the two compute different things.
      most_time: bound on our time / the peer's; None = only reported.
      most_memory: bound on our memory / the peer's; None = only reported.
      most_bytes: bound on our memory in bytes; None = no bound.
      most_error: bound on our distance from float64 / the peer's; None = not measured.
      timed: whether times are measured; False = memory only.
    """

    row: str
    ours: Side
    peer: Side
    checked: tuple[Side, Side] | None = None
    most_time: float | None = None
    most_memory: float | None = None
    most_bytes: int | None = None
    most_error: float | None = None
    timed: bool = True

    @property
    def passes(self) -> str:
        """A key of `PASS_TITLES`."""
        return self.ours.case.passes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came out of a pair.

    Attributes:
      pair: pair that was measured.
      status: "ok" or "failed".
      message: reason of the failure, or "".
      ours_seconds: seconds of one call of our side, one number per turn.
      peer_seconds: seconds of one call of the peer's side; entry i is of the same turn as
        ours_seconds[i].
      ours_bytes: bytes by which one call of our side raised the high-water mark of its process:
        outputs and temporaries, without the arguments. None where the system cannot tell.
      peer_bytes: bytes by which one call of the peer's side did.
      difference: largest |ours − peer's| over the outputs (forward) or the gradients of the inputs
        (forward + backward), relative to the largest |peer's|; None where not checked.
      ours_error: RMS distance of our outputs from those of NumPy in float64, of the same inputs;
        None where not measured.
      peer_error: RMS distance of the peer's, as `ours_error`.
    """

    pair: Pair
    status: str = "ok"
    message: str = ""
    ours_seconds: tuple[float, ...] = ()
    peer_seconds: tuple[float, ...] = ()
    ours_bytes: int | None = None
    peer_bytes: int | None = None
    difference: float | None = None
    ours_error: float | None = None
    peer_error: float | None = None

    @property
    def ratios(self) -> tuple[float, ...]:
        """Our time / the peer's, one per turn: what slows the machine slows both."""
        return tuple(a / b for a, b in zip(self.ours_seconds, self.peer_seconds, strict=True))

    @property
    def time_ratio(self) -> float | None:
        """The median of `ratios`."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def memory_ratio(self) -> float | None:
        """Our memory / the peer's."""
        if self.ours_bytes is None or not self.peer_bytes:
            return None
        return self.ours_bytes / self.peer_bytes

    @property
    def error_ratio(self) -> float | None:
        """Our distance from float64 / the peer's."""
        return self.ours_error / self.peer_error if self.ours_error and self.peer_error else None

    @property
    def error_met(self) -> bool | None:
        """Whether the bound on the distance holds; None without a bound or a measurement."""
        return _within(self.error_ratio, self.pair.most_error)

    @property
    def time_met(self) -> bool | None:
        """Whether the bound on the time holds; None without a bound or a measurement."""
        return _within(self.time_ratio, self.pair.most_time)

    @property
    def memory_met(self) -> bool | None:
        """Whether the bounds on the memory hold; None without a bound or a measurement."""
        found = [
            _within(self.memory_ratio, self.pair.most_memory),
            _within(self.ours_bytes, self.pair.most_bytes),
        ]
        known = [met for met in found if met is not None]
        return all(known) if known else None


def crossover(outcomes: list[Outcome]) -> int | None:
    """The shortest length from which on our side is faster at every measured length; None = none.

    Args:
      outcomes: outcomes of one pass against one peer, at several lengths.
    """
    best = None
    for outcome in sorted(outcomes, key=lambda o: o.pair.ours.case.length, reverse=True):
        if outcome.time_ratio is None or outcome.time_ratio >= 1:
            break
        best = outcome.pair.ours.case.length
    return best


def _within(value: float | None, most: float | None) -> bool | None:
    return None if value is None or most is None else value <= most
