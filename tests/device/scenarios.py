"""What is checked on a device: every mechanism × scenario × implementation × dtype."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from attnlab import masks
from attnlab.ops.attention import IMPLEMENTATIONS
from attnlab.testing import Sizes
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
      mask: function of the sizes that returns the mask, less the window.
      window: keys to the left and to the right that are seen; None = all.
      chunk_size: chunk length C of LSH.
      num_hashes: hash rounds R of LSH.
      shrinks_by: by how much the lengths are divided where kernels are interpreted.
    """

    name: str
    sizes: Sizes
    mask: Callable[[Sizes], masks.Mask | None]
    window: tuple[int, int] | None = None
    chunk_size: int = 16
    num_hashes: int = 4
    shrinks_by: int = 4

    def small(self) -> "Scenario":
        """A part of the lengths and of the width, for kernels that are interpreted."""
        by, sizes = self.shrinks_by, self.sizes
        if by == 1:
            return self
        width = max(8, sizes.width // 4)
        return dataclasses.replace(
            self,
            sizes=sizes._replace(
                queries=sizes.queries // by,
                keys=sizes.keys // by,
                width=width,
                value_width=width,
                hidden=width,
            ),
            window=self.window and (self.window[0] // by, self.window[1] // by),
            chunk_size=max(4, self.chunk_size // by),
        )


def everywhere(sizes: Sizes) -> None:
    """No mask."""


def causal(sizes: Sizes) -> masks.Mask:
    return masks.Causal()


def padding(sizes: Sizes) -> masks.Mask:
    """From no padding in the first example to nothing else in the last."""
    return masks.Padding(np.linspace(sizes.keys, 0, sizes.batch).astype(np.int32))


def segments(sizes: Sizes) -> masks.Mask:
    """Causal, in three segments; each example has other boundaries."""
    at, half = np.arange(sizes.queries), sizes.queries // 2
    cuts = [(sizes.queries // (3 + b), half + b) for b in range(sizes.batch)]
    ids = [(at >= first).astype(np.int32) + (at >= second) for first, second in cuts]
    return masks.Causal() & masks.Segments(np.array(ids, np.int32))


def everything(sizes: Sizes) -> masks.Mask:
    return segments(sizes) & padding(sizes)


def _sizes(batch: int, length: int, heads: int, group: int, width: int, **other: int) -> Sizes:
    same = Sizes(batch, length, length, heads, group, width, width, hidden=width)
    return same._replace(**other)


# Widths and lengths that kernels serve, with one mask at a time.
CAUSAL = Scenario("causal", _sizes(2, 256, 2, 1, 64), causal)
LONG = Scenario("long", _sizes(1, 1024, 1, 2, 64), causal, chunk_size=64, num_hashes=8)
FULL = Scenario("full", _sizes(2, 128, 2, 1, 64), everywhere, num_hashes=1)
PADDING = Scenario("padding", _sizes(3, 128, 2, 1, 64), padding)
WINDOW = Scenario("window", _sizes(2, 256, 2, 1, 64), everywhere, window=(63, 0))
BOTH_SIDES = Scenario("window_both", _sizes(2, 256, 2, 1, 64), everywhere, window=(40, 17))
SEGMENTS = Scenario("segments", _sizes(2, 256, 2, 1, 64), segments)
GROUPED = Scenario("grouped", _sizes(2, 128, 2, 3, 64), causal, num_hashes=2)
ODD = Scenario("odd", _sizes(2, 131, 2, 1, 64, keys=157), everywhere)
# All masks at once, on sizes that fit no block.
EVERYTHING = Scenario(
    "everything", Sizes(3, 61, 61, 2, 3, 7, 11, 13), everything, chunk_size=5, shrinks_by=1
)
# Several blocks of blockwise attention, so narrow that T·S·hidden numbers fit.
NARROW = Scenario("long", _sizes(1, 1024, 1, 2, 8), causal)
# As many rows as programs of a kernel's grid that do not run at once.
LARGE = Scenario("large", _sizes(2, 4096, 8, 1, 64), causal, chunk_size=64, shrinks_by=32)
# On several devices: whole batches, heads and positions for 2, 4 or 8 of them.
MESH = Scenario("mesh", _sizes(8, 64, 8, 1, 64), causal)
# The names of the default implementation under `attnlab.over`, and what the devices divide there.
DIVIDED = {"over batch": "batch", "over heads": "heads", "over length": "length"}
BUCKETS, CONTRACT = "buckets", "contract"  # the hash; a mechanism of the list against itself

SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    **{case.name: (EVERYTHING, NARROW) for case in SCORES},
    "scaled_dot": (
        *(CAUSAL, LONG, FULL, PADDING, WINDOW, BOTH_SIDES, SEGMENTS, GROUPED, ODD),
        EVERYTHING,
    ),
    "additive": (
        *(CAUSAL, NARROW, FULL, PADDING, WINDOW, BOTH_SIDES, SEGMENTS, GROUPED, ODD),
        EVERYTHING,
    ),
    "window": (WINDOW, BOTH_SIDES, dataclasses.replace(EVERYTHING, window=(9, 4))),
    "lsh": (
        *(CAUSAL, LONG, FULL, GROUPED, SEGMENTS),
        dataclasses.replace(PADDING, sizes=_sizes(3, 96, 2, 1, 64)),
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


def count_sharers(devices: int) -> int:
    """How many of these devices can share the examples, heads and positions of `MESH` evenly."""
    return math.gcd(devices, MESH.sizes.batch, MESH.sizes.num_heads, MESH.sizes.queries)


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
