"""Reading a compiled program: the text of XLA's optimized HLO, and how often its loops run."""

from __future__ import annotations

import dataclasses
import math
import re

ENTRY = "ENTRY"  # the computation that is the program
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) .*\{")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")
_OPERANDS = re.compile(r"(.*?)\)(?=, |$)(.*)")
_NAME = re.compile(r"%?([\w.-]+)")
_ARRAY = re.compile(r"\b[a-z]+(\d*)\w*\[([\d,]*)\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLS = re.compile(
    r"\b(?:calls|to_apply|condition|body|(?:true|false)_computation)=%?([\w.-]+)"
    r"|\bbranch_computations=\{(.*?)\}"
)
_COPIES = ("copy", "copy-start", "copy-done", "bitcast")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO.

    Attributes:
      opcode: name of the operation.
      operands: names of its operands; of a constant, its number.
      num_bytes: size of its result.
      rest: text of its attributes.
    """

    opcode: str
    operands: tuple[str, ...]
    num_bytes: float
    rest: str

    @property
    def calls(self) -> list[str]:
        """The computations that it runs: a loop's body, a fusion's parts, the branches."""
        listed = [single or several for single, several in _CALLS.findall(self.rest)]
        return [name for some in listed for name in names(some)]


_NOTHING = Instruction("", (), 0, "")


@dataclasses.dataclass
class Computation:
    """The instructions of a function.

    Attributes:
      name: name of the computation.
      instructions: instructions by name, in the order in which they run.
      root: instruction whose result is returned; it need not be the last.
    """

    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    def source(self, name: str) -> Instruction:
        """The instruction that made a value, behind copies of it."""
        instruction = self.instructions[name]
        while instruction.opcode in _COPIES:
            instruction = self.instructions[instruction.operands[0]]
        return instruction


def parse_program(program: str) -> dict[str, Computation]:
    """The computations of a program by name; where the program begins is `ENTRY`."""
    computations: dict[str, Computation] = {}
    current = Computation("", {}, _NOTHING)
    for line in program.splitlines():
        if heading := _COMPUTATION.fullmatch(line):
            current = Computation(ENTRY if heading[1] else heading[2], {}, _NOTHING)
            computations[current.name] = current
        elif instruction := _INSTRUCTION.match(line):
            root, name, shape, opcode, behind = instruction.groups()
            ends = _OPERANDS.match(behind)
            operands, rest = ends.groups() if ends else ("", behind)
            size = sum(map(_num_bytes, _ARRAY.finditer(shape)))
            read = Instruction(opcode, tuple(names(operands)), size, rest)
            current.instructions[name] = read
            current.root = read if root else current.root
    return computations


def names(text: str) -> list[str]:
    """The names in a list, "%a, /*index=1*/%b" or "a, b"."""
    return _NAME.findall(re.sub(r"/\*.*?\*/", "", text))


def attribute(rest: str, *of: str) -> str | None:
    """The computation that an attribute such as "calls" names."""
    match = re.search(rf"\b(?:{'|'.join(of)})=%?([\w.-]+)", rest)
    return match and match[1]


def _num_bytes(array: re.Match[str]) -> float:
    bits, sizes = array.groups()
    return int(bits or 8) / 8 * math.prod(int(n) for n in sizes.split(",") if n)


def trips(
    computations: dict[str, Computation], inside: Computation, loop: Instruction
) -> int | None:
    """How often a loop runs: as XLA says, or as `i < n; i += step` says; None = it is not known."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = computations[str(attribute(loop.rest, "condition"))]
    body = computations[str(attribute(loop.rest, "body"))]
    state = inside.source(loop.operands[0])
    test, results = condition.root, body.root.operands
    if test.opcode != "compare" or "direction=LT" not in test.rest or state.opcode != "tuple":
        return None
    index_name, stop_name = test.operands
    index = condition.source(index_name)
    stop = condition.source(stop_name)
    if (place := _place(index)) is None:
        return None
    made = body.source(results[place])
    parts = [body.source(name) for name in made.operands] if made.opcode == "add" else []
    steps = [x for part in parts if (x := _number(part)) is not None]
    if len(steps) != 1 or place not in map(_place, parts):
        return None
    end = _number(stop)
    if (other := _place(stop)) is not None and _place(body.source(results[other])) == other:
        end = _number(inside.source(state.operands[other]))
    start = _number(inside.source(state.operands[place]))
    if start is None or end is None or steps[0] <= 0:
        return None
    return max(0, -(-(end - start) // steps[0]))


def _place(instruction: Instruction) -> int | None:
    """Which element of a tuple it is."""
    if instruction.opcode != "get-tuple-element":
        return None
    match = re.search(r"\bindex=(\d+)", instruction.rest)
    return match and int(match[1])


def _number(instruction: Instruction) -> int | None:
    whole = instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.operands[0])
    return int(instruction.operands[0]) if whole else None
