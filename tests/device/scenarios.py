"""What is checked on a device: every mechanism × implementation × dtype, scenario by scenario."""

import dataclasses
import functools
import math

import numpy as np

from attnlab import masks
from attnlab.ops.attention import IMPLEMENTATIONS
from attnlab.testing import Sizes
from tests import oracle
from tests.mechanism_cases import MECHANISMS
from tests.oracle_scores import SCORES

DTYPES = ("bfloat16", "float32")
DEFAULT = "default"  # the name of `implementation=None`
EXACT_WAYS = tuple(DEFAULT if name is None else name for name in IMPLEMENTATIONS)
LSH_WAYS = (DEFAULT, "dense", "sorted", "pallas")


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
        return np.linspace(self.sizes.keys, 0, self.sizes.batch).astype(np.int32)

    @functools.cached_property
    def segments(self) -> np.ndarray:
        """Ids of the segments, [B, T]; each example has other boundaries."""
        at, half = np.arange(self.sizes.queries), self.sizes.queries // 2
        cuts = [(self.sizes.queries // (3 + b), half + b) for b in range(self.sizes.batch)]
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

    def picture(self) -> np.ndarray:
        """The mask for the oracle, [B, 1, T, S]."""
        lengths = self.sizes.queries, self.sizes.keys
        seen = np.ones((self.sizes.batch, 1, *lengths), bool)
        if self.causal:
            seen &= np.tri(*lengths, dtype=bool)
        if self.window:
            seen &= oracle.window(*lengths, *self.window)
        for b in range(self.sizes.batch):
            if self.padded:
                seen[b] &= oracle.padding(*lengths, self.kv_lengths[b])
            if self.segmented:
                seen[b] &= oracle.segments(self.segments[b], self.segments[b])
        return seen

    def sharers(self, devices: int) -> int:
        """How many of these devices can share the examples, heads and positions evenly."""
        return math.gcd(devices, self.sizes.batch, self.sizes.num_heads, self.sizes.queries)

    def small(self) -> "Scenario":
        """A part of the lengths and of the width, for kernels that are interpreted."""
        if self.name == EVERYTHING.name:
            return self
        z, by = self.sizes, 32 if self.name == LARGE.name else 4
        width = max(8, z.width // 4)
        sizes = z._replace(queries=z.queries // by, keys=z.keys // by)
        sizes = sizes._replace(width=width, value_width=width, hidden=width)
        window = self.window and tuple(side // by for side in self.window)
        return dataclasses.replace(
            self, sizes=sizes, window=window, chunk_size=max(4, self.chunk_size // by)
        )


def _sizes(batch: int, length: int, heads: int, group: int, width: int, **other: int) -> Sizes:
    same = Sizes(batch, length, length, heads, group, width, width, hidden=width)
    return same._replace(**other)


# Widths and lengths that kernels serve, with one mask at a time.
KERNELS = (
    Scenario("causal", _sizes(2, 256, 2, 1, 64), causal=True),
    Scenario("long", _sizes(1, 1024, 1, 2, 64), causal=True, chunk_size=64, num_hashes=8),
    Scenario("full", _sizes(2, 128, 2, 1, 64), num_hashes=1),
    Scenario("padding", _sizes(3, 128, 2, 1, 64), padded=True),
    Scenario("window", _sizes(2, 256, 2, 1, 64), window=(63, 0)),
    Scenario("window_both", _sizes(2, 256, 2, 1, 64), window=(40, 17)),
    Scenario("segments", _sizes(2, 256, 2, 1, 64), causal=True, segmented=True),
    Scenario("grouped", _sizes(2, 128, 2, 3, 64), causal=True, num_hashes=2),
    Scenario("odd", _sizes(2, 131, 2, 1, 64, keys=157)),
)
# All masks at once, on sizes that fit no block.
EVERYTHING = Scenario(
    "everything",
    Sizes(3, 61, 61, 2, 3, 7, 11, 13),
    causal=True,
    padded=True,
    segmented=True,
    chunk_size=5,
)
# Several blocks of blockwise attention, so narrow that the oracle's [T, S, hidden] fits.
NARROW = Scenario("long", _sizes(1, 1024, 1, 2, 8), causal=True)
# As many rows as programs of a kernel's grid that do not run at once. The oracle knows three heads.
LARGE = Scenario("large", _sizes(2, 4096, 8, 1, 64), causal=True, chunk_size=64)
# On several devices: whole batches, heads and positions for 2, 4 or 8 of them.
MESH = Scenario("mesh", _sizes(8, 64, 8, 1, 64), causal=True)
# The names of the default implementation under `attnlab.over`, and what the devices divide there.
DIVIDED = {"over batch": "batch", "over heads": "heads", "over length": "length"}
BUCKETS, CONTRACT = "buckets", "contract"  # the hash; a mechanism of the list against itself

_OF_KERNELS = {s.name: s for s in KERNELS}
SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    **{case.name: (EVERYTHING, NARROW) for case in SCORES},
    "scaled_dot": (*KERNELS, EVERYTHING),
    "additive": (*(NARROW if s.name == "long" else s for s in KERNELS), EVERYTHING),
    "window": (
        *(_OF_KERNELS[name] for name in ("window", "window_both")),
        dataclasses.replace(EVERYTHING, window=(9, 4)),
    ),
    "lsh": (
        *(_OF_KERNELS[name] for name in ("causal", "long", "full", "grouped", "segments")),
        Scenario("padding", _sizes(3, 96, 2, 1, 64), padded=True),
        EVERYTHING,
    ),
}
# Their kernels and defaults may compile and still compute wrong values: checked first.
IMPORTANT = ("scaled_dot", "additive", "lsh", "window")
RISKY = (DEFAULT, "cudnn", "splash", "pallas", *DIVIDED)
# The rest of the contract list has no kernels.
WITHOUT_KERNELS = tuple(m.name for m in MECHANISMS if m.name.split("-")[0] not in SCENARIOS)


@dataclasses.dataclass(frozen=True)
class Check:
    """A comparison of one function on the device with its truth in float64.

    Attributes:
      mechanism: a key of `SCENARIOS`, or one of `WITHOUT_KERNELS`.
      scenario: name of a `Scenario` of the mechanism, `LARGE`, `MESH`, `BUCKETS` or `CONTRACT`.
      implementation: `DEFAULT` (None), a name, or one of `DIVIDED`.
      dtype: type of the arrays.
    """

    mechanism: str
    scenario: str
    implementation: str
    dtype: str

    def __str__(self) -> str:
        return "-".join(dataclasses.astuple(self)).replace(" ", "_")

    @property
    def risky(self) -> bool:
        """Whether it is among those that come first."""
        risky = self.mechanism in IMPORTANT and self.implementation in RISKY
        return risky and self.dtype == "bfloat16"


def scenario_of(mechanism: str, name: str) -> Scenario:
    """The scenario of that name."""
    scenario = next(s for s in (*SCENARIOS[mechanism], LARGE, MESH) if s.name == name)
    if scenario is MESH and mechanism == "window":
        return dataclasses.replace(MESH, window=(9, 0))
    return scenario


def checks() -> list[Check]:
    """Every check, those that may break first."""
    every = [
        Check(mechanism, scenario.name, way, dtype)
        for mechanism, scenarios in SCENARIOS.items()
        for scenario in scenarios
        for way in (LSH_WAYS if mechanism == "lsh" else EXACT_WAYS)
        for dtype in DTYPES
    ]
    every += [
        Check(mechanism, LARGE.name, way, "bfloat16")
        for mechanism, ways in (("scaled_dot", EXACT_WAYS), ("lsh", LSH_WAYS))
        for way in ways
        if way != "dense"  # these arrays are too large for it
    ]
    every += [
        Check(mechanism, MESH.name, way, dtype)
        for mechanism in IMPORTANT
        for way in DIVIDED
        for dtype in DTYPES
    ]
    every += [Check("lsh", BUCKETS, DEFAULT, dtype) for dtype in DTYPES]
    every += [Check(name, CONTRACT, DEFAULT, dtype) for name in WITHOUT_KERNELS for dtype in DTYPES]
    return sorted(every, key=lambda check: not check.risky)  # which keeps the order otherwise
