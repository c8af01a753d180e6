"""The jobs of `device_check`, the most important first: the time may be up before the last.

A job is one scenario of one mechanism, or the programs of one length and pass, timed in turns.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attnlab.bench import trends
from attnlab.bench.case import PASSES, Case, Result
from experiments.device_check import cases, functions
from experiments.device_check.cases import BUCKETS, IMPORTANT, RISKY, TIMED, Check, Checked
from experiments.device_check.functions import FLASH
from experiments.device_check.settings import Settings
from experiments.device_check.turns import REFUSED

TARGET = 8192  # tokens: the length in the targets on crossover and additive attention
LONGEST_SCENARIO = 1024  # tokens of the longest scenario in `cases`
ROUNDS = (1, 2, 8)  # other rounds of LSH than the usual 4, timed at the longest common length
FORWARD, BOTH = PASSES
Row = Checked | Result
# Name in the checks -> name in the timing.
CHECKED_AS = {"scaled_dot": "exact", "lsh": "lsh-4", "window": "window-128"}


@dataclasses.dataclass(frozen=True)
class Job:
    """Members that are done together.

    Attributes:
      name: name in the progress.
      kind: "check" or "time".
      members: checks (all `Check`) or timed programs (all `Case`).
      last: whether the members are suspects, to be done after all other jobs.
    """

    name: str
    kind: str
    members: tuple[Any, ...]
    last: bool = False

    def of(self, members: Iterable[Any]) -> "Job":
        """This job with only some of its members."""
        return dataclasses.replace(self, members=tuple(members))

    def of_suspects(self, members: tuple[Any, ...]) -> "Job":
        """The job of the members that wait until all other jobs are done."""
        ways = sorted({f"{name} ({way or cases.AUTO})" for name, way in map(program, members)})
        name = f"{self.name}: {', '.join(ways)} again"
        return dataclasses.replace(self, name=name, members=members, last=True)


def plan(settings: Settings, platform: str, devices: int = 1) -> list[Job]:
    """Every job, the most important first.

    First come checks of the default and the kernels in bfloat16, for all mechanisms that are timed:
    in every scenario, and on the timed arrays. Then the timing; then checks of float32, of the
    other implementations and of the other scores.

    Args:
      settings: the flags.
      platform: "cpu", "gpu" or "tpu".
      devices: number of devices; with several the mechanisms that are timed are also checked on a
        mesh of them.
    """
    risky: list[Job] = []
    rest: list[Job] = []
    for mechanism in settings.mechanisms if "correctness" in settings.parts else ():
        for name, members in _checks(settings, mechanism, devices):
            first = tuple(m for m in members if _risky(m))
            others = tuple(m for m in members if not _risky(m))
            for jobs, some in ((risky, first), (rest, others)):
                if some:
                    jobs.append(Job(f"check {mechanism}, {name}", "check", some))
    return risky + (timed(settings, platform) if "speed" in settings.parts else []) + rest


def _risky(check: Check) -> bool:
    return check.scenario in (TIMED, BUCKETS) or (
        check.mechanism in IMPORTANT
        and check.implementation in (*RISKY, *cases.DIVIDED)
        and check.dtype == "bfloat16"
    )


def _checks(
    settings: Settings, mechanism: str, devices: int
) -> Iterator[tuple[str, tuple[Check, ...]]]:
    """The checks of each scenario, with its name."""
    for scenario in cases.scenarios(mechanism):
        yield scenario.name, cases.checks(mechanism, scenario.name)
    if mechanism in IMPORTANT and cases.MESH.sharers(devices) > 1:
        yield cases.MESH.name, cases.mesh_checks(mechanism)
    if mechanism == "lsh":
        yield BUCKETS, cases.hash_checks()
    length = _checked_length(settings)
    if mechanism in ("scaled_dot", "lsh") and length:
        batch = settings.tokens // length
        yield f"{TIMED} n = {length}", cases.timed_checks(mechanism, length, batch)


def _checked_length(settings: Settings) -> int:
    """The shortest timed length above those of the scenarios, else the longest; 0 = none."""
    known = [n for n in settings.lengths if n <= min(settings.tokens, TARGET)]
    longer = [n for n in known if n > LONGEST_SCENARIO]
    return min(longer, default=max(known, default=0))


def timed(settings: Settings, platform: str) -> list[Job]:
    """The jobs of the speed part."""
    common = sorted(n for n in settings.lengths if n <= settings.tokens)
    single = sorted(n for n in settings.lengths if n > settings.tokens)
    near = min(common, key=lambda n: abs(n - TARGET), default=0)
    order = [*common[-1:], near, *single[-1:], *sorted(common, key=lambda n: -n), *single]
    order = [n for n in dict.fromkeys(order) if n]
    lead = order[: 2 + bool(single)]
    rest = order[len(lead) :]
    jobs = [_tanh(platform)] if "additive" in settings.mechanisms else []
    jobs += [_length(settings, n, BOTH) for n in lead]
    jobs += [_length(settings, n, BOTH) for n in rest if n <= settings.tokens]
    jobs += [_rounds(settings, n, BOTH) for n in common[-1:]]
    jobs += [_length(settings, n, FORWARD) for n in (*lead, *rest) if n <= settings.tokens]
    jobs += [_rounds(settings, n, FORWARD) for n in common[-1:]]
    jobs += [_length(settings, n, BOTH) for n in rest if n > settings.tokens]
    return [job for job in jobs if job.members]


def _tanh(platform: str) -> Job:
    evaluations = 2**22 if platform == "cpu" else 2**30
    members = [functions.tanh_case(evaluations, dtype) for dtype in ("float32", "bfloat16")]
    return Job("tanh throughput", "time", tuple(members))


def _length(settings: Settings, length: int, passes: str) -> Job:
    """All programs of a length and a pass, the most important first."""
    alone = length > settings.tokens
    case = functools.partial(_case, settings, length, passes)

    ways = {"lsh": cases.implementations("lsh")}
    ways["additive"] = cases.implementations("additive")
    members = [case("lsh-4"), case(FLASH)]
    if "pallas" in ways["lsh"]:
        members += [case("lsh-4", "pallas"), case("lsh-4", "sorted")]
    if not alone:
        members.append(case("exact"))
        if length <= TARGET:
            members.append(case("additive"))
            if "pallas" in ways["additive"]:
                members.append(case("additive", "pallas"))
        members.append(case("window-128"))
    members.append(case("exact", "blockwise"))
    wanted = {CHECKED_AS.get(name, name) for name in settings.mechanisms} | {FLASH}
    members = [member for member in members if member.mechanism in wanted]
    return Job(f"time n = {length}, {passes.replace('_', ' + ')}", "time", tuple(members))


def _rounds(settings: Settings, length: int, passes: str) -> Job:
    """The job of LSH with other numbers of rounds."""
    members = [_case(settings, length, passes, f"lsh-{rounds}") for rounds in ROUNDS]
    name = f"time rounds, n = {length}, {passes.replace('_', ' + ')}"
    return Job(name, "time", tuple(members) if "lsh" in settings.mechanisms else ())


def _case(
    settings: Settings,
    length: int,
    passes: str,
    mechanism: str,
    implementation: str | None = None,
) -> Case:
    return Case(
        mechanism,
        length,
        passes,
        batch=max(1, settings.tokens // length),
        dtype="bfloat16",
        ops_only=True,
        implementation=implementation,
    )


def key_of(row: Row) -> Check | Case:
    """The check or case that a row is of."""
    return row.check if isinstance(row, Checked) else row.case


def finished(row: Row) -> bool:
    """Whether a resumed run leaves a row alone; it repeats crashes and programs that died."""
    if isinstance(row, Checked):
        return row.status != "crashed"
    return row.status not in ("failed", "killed") or row.message.startswith(REFUSED)


def missing(job: Job, rows: Mapping[Check | Case, Row]) -> tuple[Any, ...]:
    """The members to do; of timed programs all or none, because they are compared in turns."""
    left = tuple(m for m in job.members if m not in rows or not finished(rows[m]))
    return job.members if left and job.kind == "time" else left


def program(member: Check | Case) -> tuple[str, str | None]:
    """The mechanism and implementation; a check and a timed case of them give the same names."""
    way = None if member.implementation == cases.AUTO else member.implementation
    return CHECKED_AS.get(member.mechanism, member.mechanism), way


def expected_seconds(case: Case, rows: Iterable[Row]) -> float:
    """Seconds of one call of a case, predicted per sequence from shorter lengths of the program."""
    same = [
        dataclasses.replace(row, seconds=tuple(s / row.case.batch for s in row.seconds))
        for row in rows
        if isinstance(row, Result)
        and dataclasses.replace(row.case, length=case.length, batch=case.batch) == case
    ]
    return case.batch * trends.predicted(same, case.length)
