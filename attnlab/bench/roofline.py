"""How near a program is to the limit of its machine: the roofline of Williams et al. 2009.

A machine has units that may all work at once: one for matrix products, one for exponentials, tanh
and divisions, its memory, and its links to others. A program that gives them so much work takes at
least the longest of

    products / rate of products,   Σ_f numbers of f / rate of f,   bytes / rate of the memory,
    bytes sent within a host / rate of the links,   bytes sent between hosts / rate of that network

and its share of the peak is that time over the one it takes. The operations are those of the traced
program (`operations`): what it does, not what its equation would need. What is not counted there,
additions and sorting say, makes the true limit higher. Source: S. Williams, A. Waterman, D.
Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from attnlab.bench.case import Operations, Sent
from attnlab.bench.targets import Device

PRODUCTS = "products"
UNITS = (PRODUCTS, "exp", "tanh", "div")
# CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", 8.0 to 10.0.
_OF_A_CLOCK = 16  # functions of a multiprocessor


@dataclasses.dataclass(frozen=True)
class Unit:
    """What the peak of is measured.

    Attributes:
      name: name of the operation, one of `UNITS`.
      dtype: dtype of its numbers.
    """

    name: str
    dtype: str

    def __str__(self) -> str:
        return f"peak of {self.name}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Peak:
    """What was measured of a unit.

    Attributes:
      unit: unit that was measured.
      rate: operations a second of the fastest sample.
      rates: operations a second of every sample.
      message: why it was not measured, or "".
    """

    unit: Unit
    rate: float
    rates: tuple[float, ...] = ()
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Bound:
    """The least time of a program.

    Attributes:
      seconds: time that it takes at least.
      by: unit that takes so long: "products", "functions", "memory", "links" or "hosts".
    """

    seconds: float
    by: str


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a machine can do at most.

    Attributes:
      products: floating-point operations of matrix products a second.
      functions: functions of a number a second, by name; one that has no rate of its own is as fast
        as the fastest. Empty = not known: they take no time.
      memory: bytes a second; infinite where they may stay in a cache.
      links: bytes a second sent to others of the slice or the host; infinite where not known.
      hosts: bytes a second sent to other hosts.
    """

    products: float
    functions: Mapping[str, float]
    memory: float = math.inf
    links: float = math.inf
    hosts: float = math.inf

    @classmethod
    def of_peaks(cls, peaks: Iterable[Peak]) -> Rates | None:
        """Those that were measured; None where one is missing."""
        rates = {peak.unit.name: peak.rate for peak in peaks if peak.rate}
        if not set(UNITS) <= rates.keys():
            return None
        return cls(rates.pop(PRODUCTS), rates)

    @classmethod
    def of_device(cls, device: Device) -> Rates:
        """Those that are published, of one JAX device; of functions only a GPU's."""
        functions = {}
        if device.kind == "cuda":
            clock = device.gpu["clock_rate_ghz"] * 1e9
            functions = {"": _OF_A_CLOCK * device.gpu["core_count"] * clock}
        return cls(
            device.products_per_second,
            functions,
            device.memory_bytes_per_second,
            device.interconnect_bytes_per_second,
            device.between_hosts_bytes_per_second,
        )

    def bound(
        self, operations: Operations, num_bytes: float = 0, sent: Sent | None = None
    ) -> Bound:
        """The least time of a program of one device.

        Args:
          operations: operations that it does.
          num_bytes: number of bytes that it moves from and to memory.
          sent: bytes that it sends to other devices; None = nothing.
        """
        sent = sent or Sent()
        fastest = max(self.functions.values(), default=math.inf)
        functions = operations.functions.items()
        times = {
            "products": operations.products / self.products,
            "functions": sum(n / self.functions.get(name, fastest) for name, n in functions),
            "memory": num_bytes / self.memory,
            "links": (sent.total - sent.between_hosts) / self.links,
            "hosts": sent.between_hosts / self.hosts,
        }
        by = max(times, key=times.__getitem__)
        return Bound(times[by], by)
