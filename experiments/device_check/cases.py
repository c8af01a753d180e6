"""What is checked on a device: every mechanism × implementation × dtype, scenario by scenario."""

import dataclasses
import functools
import math

import numpy as np

from attnlab import masks
from attnlab.bench import oracle
from attnlab.bench.oracle_scores import SCORES, Sizes
from attnlab.ops import attention as ops
from attnlab.ops import routes
from experiments.device_check.functions import FLASH

DTYPES = ("float32", "bfloat16")
AUTO = "default"  # the name of `implementation=None`
CHECKED = ("pass", "fail", "refused", "crashed")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Sizes and a mask.

    Attributes:
      name: name of the scenario.
      sizes: sizes of the arrays; `hidden` is the width of the concat score.
      causal: whether the mask has `masks.Causal()`.
      window: keys to the left and to the right in `masks.Window`; None = the mask has none.
      padded: whether the mask has `masks.Padding`: the last example then has no key at all.
      segmented: whether the mask has `masks.Segments`, three of them.
      chunk_size: chunk length C of LSH.
      num_hashes: hash rounds R of LSH.
    """

    name: str
    sizes: Sizes
    causal: bool = False
    window: tuple[int, int] | None = None
    padded: bool = False
    segmented: bool = False
    chunk_size: int = 16
    num_hashes: int = 4

    @functools.cached_property
    def kv_lengths(self) -> np.ndarray:
        """Numbers of keys that are not padding, [B]: from all in the first example to none."""
        sizes = self.sizes
        return np.linspace(sizes.keys, 0, sizes.batch).astype(np.int32)

    @functools.cached_property
    def segments(self) -> np.ndarray:
        """Ids of the segments, [B, T]; each example has other boundaries."""
        sizes = self.sizes
        at = np.arange(sizes.queries)
        cuts = [(sizes.queries // (3 + b), sizes.queries // 2 + b) for b in range(sizes.batch)]
        return np.array([(at >= a).astype(int) + (at >= b) for a, b in cuts], np.int32)

    def mask(self) -> masks.Mask | None:
        """The mask for the library."""
        parts: list[masks.Mask] = []
        if self.causal:
            parts.append(masks.Causal())
        if self.window:
            parts.append(masks.Window(*self.window))
        if self.padded:
            parts.append(masks.Padding(self.kv_lengths))
        if self.segmented:
            parts.append(masks.Segments(self.segments))
        return functools.reduce(lambda a, b: a & b, parts) if parts else None

    def sharers(self, devices: int) -> int:
        """How many of these devices can share the examples, heads and positions evenly."""
        sizes = self.sizes
        return math.gcd(devices, sizes.batch, sizes.num_heads, sizes.queries)

    def picture(self) -> np.ndarray:
        """The mask for the oracle, [B, 1, T, S]."""
        sizes = self.sizes
        seen = np.ones((sizes.batch, 1, sizes.queries, sizes.keys), bool)
        lengths = sizes.queries, sizes.keys
        if self.causal:
            seen &= oracle.causal(*lengths)
        if self.window:
            seen &= oracle.window(*lengths, *self.window)
        for b in range(sizes.batch):
            if self.padded:
                seen[b] &= oracle.padding(*lengths, self.kv_lengths[b])
            if self.segmented:
                seen[b] &= oracle.segments(self.segments[b], self.segments[b])
        return seen


def _sizes(batch: int, length: int, heads: int, group: int, width: int, **other: int) -> Sizes:
    same = Sizes(batch, length, length, heads, group, width, width, hidden=width)
    return same._replace(**other)


# Widths and lengths that kernels serve, with one mask at a time.
KERNELS = (
    Scenario("causal", _sizes(2, 256, 2, 1, 64), causal=True),
    Scenario("long", _sizes(1, 1024, 1, 2, 64), causal=True, chunk_size=64),
    Scenario("full", _sizes(2, 128, 2, 1, 64)),
    Scenario("padding", _sizes(3, 128, 2, 1, 64), padded=True),
    Scenario("window", _sizes(2, 256, 2, 1, 64), window=(63, 0)),
    Scenario("window_both", _sizes(2, 256, 2, 1, 64), window=(40, 17)),
    Scenario("segments", _sizes(2, 256, 2, 1, 64), causal=True, segmented=True),
    Scenario("grouped", _sizes(2, 128, 2, 3, 64), causal=True),
    Scenario("odd", _sizes(2, 131, 2, 1, 64, keys=157)),
)
# All masks at once, on sizes that fit no block.
EVERYTHING = Scenario(
    "everything",
    Sizes(3, 61, 61, 2, 3, 7, 11, 13),
    causal=True,
    padded=True,
    segmented=True,
)
# Several blocks of blockwise attention, so narrow that the oracle's [T, S, hidden] fits.
LONG = Scenario("long", _sizes(1, 1024, 1, 2, 8), causal=True)
IN_TURN: dict[str, tuple[Scenario, ...]] = {
    "scaled_dot": (*KERNELS, EVERYTHING),
    "additive": (*(LONG if s.name == "long" else s for s in KERNELS), EVERYTHING),
    "window": (KERNELS[4], KERNELS[5], dataclasses.replace(EVERYTHING, window=(9, 4))),
    "lsh": (  # with every timed number of rounds
        *(
            dataclasses.replace(s, num_hashes=rounds)
            for s in KERNELS
            for name, rounds in (("causal", 4), ("long", 8), ("full", 1), ("grouped", 2))
            if s.name == name
        ),
        next(s for s in KERNELS if s.name == "segments"),
        Scenario("padding", _sizes(3, 96, 2, 1, 64), padded=True),
        dataclasses.replace(EVERYTHING, chunk_size=5),
    ),
}
# On several devices: whole batches, heads and positions for 2, 4 or 8 of them.
MESH = Scenario("mesh", _sizes(8, 64, 8, 1, 64), causal=True)
# The names of the default implementation under `attnlab.over`, and what the devices divide there.
DIVIDED = {"over batch": "batch", "over heads": "heads", "over length": "length"}
MECHANISMS = tuple(dict.fromkeys(["scaled_dot", "additive", "lsh", "window"])) + tuple(
    case.name for case in SCORES if case.name not in IN_TURN
)
# Scenarios of their own: the arrays that are timed, and the buckets of LSH.
TIMED, BUCKETS = "timed", "buckets"
# Checked first: the mechanisms that are timed, and of them the implementations that may compile
# and still compute wrong values on the device.
IMPORTANT = ("scaled_dot", "additive", "lsh", "window")
RISKY = (AUTO, "cudnn", "splash", "pallas")


@dataclasses.dataclass(frozen=True)
class Check:
    """A comparison of one function on the device with the oracle.

    Attributes:
      mechanism: one of `MECHANISMS`.
      scenario: name of a `Scenario` of the mechanism, `MESH.name`, `TIMED` or `BUCKETS`.
      implementation: "default" (None), a name, or one of `DIVIDED`.
      dtype: type of the arrays.
      length: length of the sequences of `TIMED`; 0 = the scenario's.
      batch: number of sequences of `TIMED`; 0 = the scenario's.
    """

    mechanism: str
    scenario: str
    implementation: str
    dtype: str
    length: int = 0
    batch: int = 0

    @property
    def where(self) -> str:
        """The name of the scenario, with the length of `TIMED`."""
        return f"{self.scenario} n = {self.length}" if self.length else self.scenario

    def __str__(self) -> str:
        return f"{self.mechanism}, {self.implementation}, {self.where}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Checked:
    """What came out of a check.

    Attributes:
      check: check that was done.
      status: one of `CHECKED`.
      message: the worst error, or why there is none.
      ratios: errors over what is allowed, by name: of the context and each gradient, in the mean
        and in the worst row; "plain": the worst ratio of the plain version that judges them;
        "past": how far a change of the future moved the past, over rounding; "elsewhere": how far
        rows that the oracle does not know are from the plain version; "buckets": how much nearer
        another axis is than the bucket's, over rounding.
    """

    check: Check
    status: str
    message: str = ""
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)


def scenarios(mechanism: str) -> tuple[Scenario, ...]:
    """The scenarios of a mechanism."""
    return IN_TURN.get(mechanism, (EVERYTHING, LONG))


def scenario(mechanism: str, name: str) -> Scenario:
    """The scenario of that name."""
    if name == MESH.name:
        return dataclasses.replace(MESH, window=(9, 0)) if mechanism == "window" else MESH
    return next(s for s in scenarios(mechanism) if s.name == name)


def implementations(mechanism: str) -> tuple[str, ...]:
    """The name of every implementation of a mechanism, whether this device can run it or not."""
    if mechanism == "lsh":
        return (AUTO, *filter(_lsh_knows, ("dense", "sorted", "pallas")))
    return tuple(AUTO if name is None else name for name in ops.IMPLEMENTATIONS)


def _lsh_knows(name: str) -> bool:
    try:
        routes.LSH(implementation=name)
    except ValueError:
        return False
    return True


def checks(mechanism: str, name: str) -> tuple[Check, ...]:
    """All checks of one scenario."""
    return tuple(
        Check(mechanism, name, implementation, dtype)
        for implementation in implementations(mechanism)
        for dtype in DTYPES
    )


def timed_checks(mechanism: str, length: int, batch: int) -> tuple[Check, ...]:
    """The checks on the timed arrays, where the plain version is checked as well."""
    ways = implementations(mechanism)
    ways = tuple(way for way in ways if way != "dense")  # these arrays are too large for it
    if mechanism != "lsh":
        ways = (FLASH, *ways)
    return tuple(Check(mechanism, TIMED, way, "bfloat16", length, batch) for way in ways)


def mesh_checks(mechanism: str) -> tuple[Check, ...]:
    """The checks on several devices, which divide the examples, the heads or the positions."""
    return tuple(Check(mechanism, MESH.name, way, dtype) for way in DIVIDED for dtype in DTYPES)


def hash_checks() -> tuple[Check, ...]:
    """The checks of `hash_buckets`."""
    return tuple(Check("lsh", BUCKETS, AUTO, dtype) for dtype in DTYPES)
