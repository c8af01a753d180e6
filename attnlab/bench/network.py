"""Bytes that a compiled program sends over the network, counted in its optimized HLO.

A collective among g devices on h hosts, each of which puts x bytes in, makes every one of them send

| operation            | bytes              | its share of what its host sends to others |
| -------------------- | ------------------ | ------------------------------------------ |
| `all-gather`         | (g − 1) x          | (h − 1) x                                  |
| `reduce-scatter`     | (g − 1) / g · x    | (h − 1) / g · x                            |
| `all-reduce`         | 2 (g − 1) / g · x  | 2 (h − 1) / g · x                          |
| `all-to-all`         | (g − 1) / g · x    | (h − 1) / h · x                            |
| `collective-permute` | x                  | x, where a pair is on two hosts            |

A ring reaches the first column, and no algorithm whose sums are made by the devices sends less (P.
Patarasu, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal
of Parallel and Distributed Computing 69(2), 2009); the second is that of rings within the hosts and
between them. Switches that add, as NVLink SHARP does, halve an all-reduce. What the body of a loop
sends counts as often as the loop runs, and a computation as often as it is called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from attnlab.bench import hlo
from attnlab.bench.case import Sent
from attnlab.bench.hlo import Computation, Instruction

# Of x bytes among g devices on h hosts: what each sends, and its share between hosts.
_SHARES: dict[str, Callable[[int, int], tuple[float, float]]] = {
    "all-gather": lambda g, h: (g - 1, h - 1),
    "reduce-scatter": lambda g, h: ((g - 1) / g, (h - 1) / g),
    "all-reduce": lambda g, h: (2 * (g - 1) / g, 2 * (h - 1) / g),
    "all-to-all": lambda g, h: ((g - 1) / g, (h - 1) / h),
}
_UNCOUNTED = ("ragged-all-to-all", "collective-broadcast")
# The TPU compiler's sum of which each device keeps a part: a fusion with an all-reduce in it.
_REDUCE_SCATTER = "all-reduce-scatter"
# There a collective that runs beside other fusions is written in each of them, and is one chain.
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_CHAIN_BEGINS = '"flag_start":"-1"'

_PAIRS = re.compile(r"\bsource_target_pairs=\{(.*?)\}(?=, |$)")
_LISTED = re.compile(r"\breplica_groups=\{(.*?)\}(?=, |$)")
_COMPUTED = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_MESH = re.compile(r"\breplica_groups=mesh\[((?:'\w+'=\d+,?)+)\] \{([^}]*)\}")
_PART = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")  # 'data':(2)4 is 4 of an axis, behind 2 of it


def sent(program: str, *, devices: int, devices_per_host: int) -> Sent:
    """What each device sends in one run of a compiled program.

    Of the branches of a condition that counts which sends least.

    Args:
      program: optimized HLO, such as `jax.stages.Compiled.as_text()`.
      devices: number of devices that run it.
      devices_per_host: number of devices that need no network between hosts.

    Raises:
      NotImplementedError: a loop around a collective runs an unknown number of times, or a
        collective is of another form than those of the table.
    """
    counter = _Counter(hlo.parse_program(program), np.arange(devices) // devices_per_host)
    total = counter.of(hlo.ENTRY)
    if counter.chains != counter.begun:
        raise NotImplementedError("a chain of collectives never begins")
    return total


class _Counter:
    """What computations send, each of them looked at once.

    Attributes:
      chains: chains that were seen.
      begun: chains whose beginning was counted.
    """

    def __init__(self, computations: dict[str, Computation], host_of: np.ndarray):
        self.chains: set[str] = set()
        self.begun: set[str] = set()
        self._computations, self._host_of = computations, host_of
        self._known: dict[str, Sent] = {}

    def of(self, name: str) -> Sent:
        """What one call of a computation sends."""
        inside = self._computations[name]
        if inside.name not in self._known:
            parts = (self._instruction(inside, x) for x in inside.instructions.values())
            self._known[inside.name] = sum(parts, start=Sent())
        return self._known[inside.name]

    def _instruction(self, inside: Computation, instruction: Instruction) -> Sent:
        kind = instruction.opcode.removesuffix("-start")
        if kind in _UNCOUNTED:
            raise NotImplementedError(f"what {kind} sends is not counted")
        if kind in _SHARES or kind == "collective-permute":
            return self._collective(kind, inside, instruction)
        match kind:
            case "while":
                return self._while(inside, instruction)
            case "conditional":
                return min(map(self.of, instruction.calls), key=lambda sent: sent.total)
            case "call" | "fusion" | "async":
                return sum(map(self.of, instruction.calls), start=Sent())
        return Sent()

    def _while(self, inside: Computation, loop: Instruction) -> Sent:
        body = self.of(str(hlo.attribute(loop.rest, "body")))
        if not body.total:
            return body
        number = hlo.trips(self._computations, inside, loop)
        if number is None:
            raise NotImplementedError("a loop around a collective runs an unknown number of times")
        return body * number

    def _collective(self, kind: str, inside: Computation, instruction: Instruction) -> Sent:
        if chain := _CHAIN.search(instruction.rest):
            self.chains.add(chain[1])
            if _CHAIN_BEGINS not in instruction.rest:
                return Sent()
            self.begun.add(chain[1])
        size = sum(inside.instructions[name].num_bytes for name in instruction.operands)
        if kind == "collective-permute":
            numbers = re.findall(r"\d+", _found(_PAIRS, instruction.rest)[1])
            pairs = np.array(numbers, int).reshape(-1, 2)
            hosts = self._host_of[pairs]
            return Sent(size, size * float(np.any(hosts[:, 0] != hosts[:, 1])))
        if inside.name.startswith(_REDUCE_SCATTER):
            kind = "reduce-scatter"
        groups = self._groups(instruction.rest)
        devices = max(map(len, groups))
        hosts_of_group = max(len({*self._host_of[[*group]]}) for group in groups)
        total, between = _SHARES[kind](devices, hosts_of_group)
        return Sent(total * size, between * size)

    def _groups(self, rest: str) -> Sequence[Sequence[int]]:
        """The devices of each group: listed, transposed from an array of all, or axes of a mesh."""
        if computed := _COMPUTED.search(rest):
            shape = _numbers(computed[1])
            sizes = _numbers(computed[2])
            order = _numbers(computed[3] or "")
            devices = np.arange(math.prod(sizes)).reshape(sizes)
            return devices.transpose(order or range(len(sizes))).reshape(shape).tolist()
        if mesh := _OF_MESH.search(rest):
            parts = {name: (before, size) for name, before, size in _PART.findall(mesh[2])}
            sizes, chosen = list[int](), list[bool]()
            for name, whole in re.findall(r"'(\w+)'=(\d+)", mesh[1]):
                # 1 of an axis that is not named, and all of one that is named without numbers.
                before_text, size_text = parts.get(name, ("1", "1"))
                before = int(before_text or 1)
                size = int(size_text or whole)
                sizes += [before, size, int(whole) // before // size]
                chosen += [False, name in parts, False]
            devices = np.arange(len(self._host_of)).reshape(sizes)
            order = sorted(range(len(sizes)), key=chosen.__getitem__)  # the chosen ones last
            number = math.prod(n for n, mine in zip(sizes, chosen, strict=True) if mine)
            return devices.transpose(order).reshape(-1, number).tolist()
        listed = [_numbers(x) for x in re.findall(r"\{([\d,]+)\}", _found(_LISTED, rest)[1])]
        return listed or [range(len(self._host_of))]  # {} is one group of all


def _found(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.search(text)
    if match is None:
        raise NotImplementedError(f"HLO of another form: no {pattern.pattern} in {text[:200]}")
    return match


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",") if x]
