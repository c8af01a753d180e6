"""Which stage of LSH attention an instruction of a compiled program belongs to.

The code's named scopes (`lsh_hash`, …) are in the `op_name` that XLA keeps with each instruction,
through fusion, differentiation and the bodies of loops; the innermost scope is the stage. What XLA
itself adds (copies, parts of a split reduction) has no `op_name` and gets the stage of the
instruction that it works on.
"""

import dataclasses
import re

STAGES = ("hash", "sort", "gather", "attend", "merge", "other")

_SCOPE = re.compile(r"\blsh_(hash|sort|gather|attend|merge)\b")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a program.

    Attributes:
      op_name: path of scopes in the source, from XLA's metadata; "" = XLA itself added it.
      stage: one of `STAGES`.
      runs: instructions of the computations that this one calls: a loop's body, a fusion's parts.
    """

    op_name: str
    stage: str
    runs: frozenset[str] = frozenset()


def stage_of(op_name: str) -> str:
    """The innermost scope of an `op_name`; "other" outside all of them.

    >>> stage_of("jit(f)/jvp(lsh_merge)/while/body/lsh_attend/lsh_gather/gather")
    'gather'
    """
    scopes = _SCOPE.findall(op_name)
    return scopes[-1] if scopes else "other"


def instructions(hlo: str) -> dict[str, Instruction]:
    """Every instruction of a compiled program by its name.

    Args:
      hlo: text of the program, `compiled.as_text()`.
    """
    op_names: dict[str, str] = {}
    named: dict[str, list[str]] = {}  # instruction -> every name that its line mentions
    members: dict[str, list[str]] = {}  # computation -> its instructions
    for line in hlo.splitlines():
        if found := _COMPUTATION.match(line):
            inside = members.setdefault(found[1], [])
        elif found := _INSTRUCTION.match(line):
            name, rest = found[1], found[2]
            op_name = _OP_NAME.search(rest)
            op_names[name] = op_name[1] if op_name else ""
            named[name] = _NAME.findall(rest)
            inside.append(name)
    stages = {name: stage_of(op_name) for name, op_name in op_names.items() if op_name}
    for inside in members.values():
        _inherit(inside, named, stages)
    return {
        name: Instruction(
            op_name,
            stages.get(name, "other"),
            frozenset(part for other in named[name] for part in members.get(other, ())),
        )
        for name, op_name in op_names.items()
    }


def _inherit(inside: list[str], named: dict[str, list[str]], stages: dict[str, str]) -> None:
    """Gives instructions without a stage that of their first operand with one, else of a user.

    Instructions come after their operands, so one pass forwards follows a chain of operands to its
    beginning, and one pass backwards a chain of users to its end.
    """
    users: dict[str, list[str]] = {}
    for name in inside:
        for operand in named[name]:
            users.setdefault(operand, []).append(name)
    for near, order in ((named, inside), (users, inside[::-1])):
        for name in order:
            if name not in stages:
                found = [stages[other] for other in near.get(name, ()) if other in stages]
                if found:
                    stages[name] = found[0]
