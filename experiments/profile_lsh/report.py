"""Tables of a profile, as Markdown: pure functions of its rows."""

from collections.abc import Sequence

from attnlab.bench.case import PASS_TITLES, PASSES
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import duration
from experiments.profile_lsh.profile import Profile
from experiments.profile_lsh.stages import STAGES

_LISTED = 8  # instructions in a table
_METHOD = """\
The program that is timed is the one that is traced. *n* is the length; *time* is the median of a
call without the profiler; *traced* is the fastest call under it, and the stages are that call's:
what else the machine does disturbs it least. It still does: on a busy machine the work that moves
the most memory gains the most.

The stages are the named scopes of the code, `lsh_hash` to `lsh_merge`, the innermost one; *other*
is what lies outside them: slicing heads out of the arrays and writing them back, normalizing the
keys, the loss. What the compiler added without saying where it belongs counts with what it works
on. A fusion counts whole for one stage.

Instructions run side by side, on a CPU several at once over all cores, and wait for each other. So
each moment is divided equally between the instructions in flight, and the stages add up to the
time in which any was: the rest of *traced* is dispatch."""


def table(profiles: Sequence[Profile], passes: str) -> str:
    """A Markdown table of one pass: a row per length; time and share of each stage."""
    header = ["n", "time", "traced", *STAGES]
    rows = []
    for profile in chosen(profiles, passes):
        cells = [profile.message or profile.status, *[""] * (len(header) - 2)]
        if profile.status == "ok":
            stages = (f"{duration(profile.stages[s])} {profile.shares[s]:.1%}" for s in STAGES)
            cells = [duration(profile.median_seconds), duration(profile.traced_seconds), *stages]
        rows.append([str(profile.case.length), *cells])
    return markdown_table(header, rows)


def tables(profiles: Sequence[Profile]) -> str:
    """The tables of all passes, with their titles."""
    shown = [passes for passes in PASSES if chosen(profiles, passes)]
    parts = [
        part for p in shown for part in (f"## {PASS_TITLES[p].capitalize()}", table(profiles, p))
    ]
    return "\n\n".join(parts)


def markdown(told: SoFar[Profile]) -> str:
    """The whole report of a run as far as it is done."""
    profiles = told.rows
    parts = ["# Where the time of LSH attention goes", told.how_much("cases"), _what(profiles)]
    if any(profile.status == "ok" for profile in profiles):
        parts.append("![shares over length](shares.svg)")
    parts.append(tables(profiles))
    for passes in PASSES:
        if measured := [p for p in chosen(profiles, passes) if p.status == "ok"]:
            title = (
                f"## Largest instructions: {PASS_TITLES[passes]}, n = {measured[-1].case.length}"
            )
            parts += [title, _largest(measured[-1])]
    return document(*parts, "## How it was measured", _METHOD, told.missing, told.origin)


def chosen(profiles: Sequence[Profile], passes: str) -> list[Profile]:
    """The rows of one pass, lengths rising."""
    return sorted((p for p in profiles if p.case.passes == passes), key=lambda p: p.case.length)


def line(profile: Profile) -> str:
    """One row as a line for the terminal."""
    if profile.status != "ok":
        return f"{profile.status.replace('_', ' ')}: {profile.message}"
    shares = (f"{stage} {share:.0%}" for stage, share in profile.shares.items())
    return f"{duration(profile.median_seconds)}: {', '.join(shares)}"


def _largest(profile: Profile) -> str:
    """A table of the largest instructions, and of the largest that belong to no stage."""
    other = [one for one in profile.instructions if one["stage"] == "other"]
    listed = [*profile.instructions[:_LISTED], *other[:_LISTED]]
    unique = {one["name"]: one for one in listed}.values()
    total = sum(profile.stages.values())
    rows = [
        [
            one["name"],
            one["stage"],
            duration(one["seconds"]),
            f"{one['seconds'] / total:.1%}",
            _end_of(one["op_name"]),
        ]
        for one in unique
    ]
    return markdown_table(["instruction", "stage", "time", "share", "from"], rows)


def _end_of(op_name: str) -> str:
    """The end of the path that says where an instruction comes from, without loops."""
    loops = ("while", "body", "closed_call", "eval_jaxpr")
    steps = [step for step in op_name.split("/") if step not in loops]
    return "/".join(steps[-3:]) or "(the compiler)"


def _what(profiles: Sequence[Profile]) -> str:
    case = profiles[0].case
    buckets = ", ".join(
        f"{n} at n = {length}"
        for length, n in sorted({p.case.length: p.num_buckets for p in profiles}.items())
    )
    return (
        f"`lsh_attention` with its hashing, batch {case.batch}, {case.num_heads} heads of width "
        f"{case.head_dim}, {case.attention.number} hash rounds, chunks of {case.chunk_size}, "
        f"{case.dtype}, {'causal' if case.causal else 'not causal'}. Buckets: {buckets}."
    )
