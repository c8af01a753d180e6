"""The command line of `check`, and what it does."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attnlab
from attnlab import MultiHeadAttention, masks
from attnlab.devices import platforms
from attnlab.mechanisms import own
from attnlab.mechanisms.drawing import draw_moves
from attnlab.ops.routes import Function
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.errors import one_line
from attnlab.runs.folder import Folder
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, group, so_far
from attnlab.runs.rows import Rows
from attnlab.scores import Dot
from attnlab.testing import (
    CONTRACTS,
    MODEL_CONTRACTS,
    Outcome,
    Report,
    cost,
    outcome,
    subject_of,
)
from experiments import check
from experiments.check.settings import PUBLIC, Settings

Item = tuple[str, str]
COST = "cost"  # beside the contracts: what it takes, which is no promise
DEVICES = 2  # of a CPU, for the contract `devices`


def main(argv: list[str]) -> int:
    """Parses the flags and checks; the words before the first flag are mechanisms."""
    program, *words = argv
    first = next((i for i, x in enumerate(words) if x.startswith("-")), len(words))
    argv = [program, *(f"--mechanisms={x}" for x in words[:first]), *words[first:]]
    return command_line.run(argv, Settings, run, doc=check.__doc__, free=("json",))


def run(settings: Settings, folder: Folder) -> int:
    """Checks in this process; 1 where a contract is broken."""
    platforms.make_cpu_devices(DEVICES)
    rows: Rows[Item, Outcome] = Rows(folder, lambda row: (row.mechanism, row.contract), [Outcome])
    packages = dict.fromkeys(x["package"] for x in PUBLIC) if settings.public else {}
    rows.environment = provenance.describe((*packages,))
    mechanisms = list(dict.fromkeys(settings.mechanisms))
    rows.require_same_own(own.digests(" ".join(mechanisms)))
    model = functools.cache(settings.make_model)
    models = {name for name in mechanisms if settings.is_model(name)}
    if not settings.public:  # whose models are made one after the other
        for name in models:
            model(name)
    measured = {name for name, _ in rows.kept}
    items = [
        (name, contract)
        for name in mechanisms
        if settings.is_here(name) or name in measured
        for contract in (*settings.contracts, COST)
        if contract in (MODEL_CONTRACTS if name in models else {**CONTRACTS, COST: None})
    ]

    def measure(item: Item) -> list[Outcome]:
        name, contract = item
        if contract == COST:
            return [_cost(name)]
        if name not in models:
            return [outcome(name, contract, settings.seed)]
        made = outcome(model(name), contract, settings.seed)
        if settings.public and made.verdict == "no":  # of others' work it is said once it is sure
            again = outcome(model(name), contract, settings.seed + 1).verdict
            made = dataclasses.replace(made, words=f"{made.words}; with other tokens: {again}")
        return [made]

    def make_report() -> loop.Report:
        done = so_far(rows, {", ".join(item): [item] for item in items}, settings)
        report = Report(tuple(done.rows))
        if settings.public:
            return loop.Report(_public(report, done), said=_answer(report))
        drawn = {
            name: draw_moves(model(name).moves()).figure if name in models else _figure(name)
            for name in mechanisms
        }
        drawn = {name: figure for name, figure in drawn.items() if figure is not None}
        figures = {_file(name): figure for name, figure in drawn.items()}
        return loop.Report(_markdown(report, done, [*drawn]), figures, said=_answer(report))

    job = loop.Job(
        "contracts",
        measure,
        make_report,
        title=", ".join,
        line=_line,
    )
    with contextlib.redirect_stdout(sys.stderr if settings.json else sys.stdout):
        status = loop.run(job, items, folder, rows, where=provenance.devices_of(rows.environment))
    kept = tuple(entry.row for entry in rows.of(items))
    if settings.json:
        print(json.dumps([dataclasses.asdict(row) for row in kept], indent=1))
    return status or int(bool(Report(kept).broken))


def _line(rows: Sequence[Outcome]) -> str:
    verdict, words = rows[0].verdict, rows[0].words
    return verdict if verdict == "yes" else f"{verdict}: {words}"


def _cost(name: str) -> Outcome:
    promise = "What the gradient of one example and head, 7 wide, takes."
    try:
        words = str(cost(name))
    except Exception as error:  # whatever a user's code raises is its answer
        words = one_line(error)
    return Outcome(name, COST, promise, "-", words)


def _answer(report: Report) -> str:
    """Of each mechanism, how many contracts it keeps, and which it breaks."""
    lines = []
    for name, rows in group(report.outcomes, lambda row: row.mechanism).items():
        count = Counter(row.verdict for row in rows)
        broken = ", ".join(row.contract for row in rows if row.verdict == "no") or "none"
        kept = f"keeps {count['yes']} of {count['yes'] + count['no']} contracts"
        lines.append(f"{name} {kept}, breaks {broken}")
    return "; ".join(lines)


def _markdown(report: Report, done: SoFar[Outcome], drawn: list[str]) -> str:
    noes = [row for row in report.outcomes if row.verdict == "no"]
    others = [row for row in report.outcomes if row.verdict == "-"]
    equal = dict.fromkeys((x.mechanism, x.words) for x in report.outcomes if x.verdict == "yes")
    contracts = tuple(row for row in report.outcomes if row.contract != COST)
    return document(
        "# Contracts of attention",
        f"**{_answer(report)}**",
        str(Report(contracts)),
        *[f"![Pairs that are seen by {name}]({_file(name)}.svg)" for name in drawn],
        "## Broken" if noes else "",
        *[f"{x.mechanism}, **{x.contract}**: {x.words}\n\n    {x.line}" for x in noes],
        "## Does not apply, and cost",
        "\n".join(f"- {x.mechanism}, {x.contract}: {x.words}" for x in others),
        "\n".join(f"- {name}: {words}" for name, words in equal if words),
        done.missing,
        done.origin,
    )


def _public(report: Report, done: SoFar[Outcome]) -> str:
    """A row for each public attention and model, and what is not kept, in the order of the file."""
    about = {x["call"]: x for x in PUBLIC}
    versions = done.wheres[-1].environment["versions"]
    table, found = [], []
    for call, rows in group(report.outcomes, lambda row: row.mechanism).items():
        title, package = about[call]["title"], about[call]["package"]
        verdicts = {row.contract: row.verdict for row in rows}
        kept = [verdicts.get(name, "") for name in MODEL_CONTRACTS]
        table.append([title, f"{package} {versions[package]}", *kept])
        noes = [row for row in rows if row.verdict == "no"]
        found += [f"{title}, **{x.contract}**: {x.words}\n\n    {x.line}" for x in noes]
        found += [about[call]["note"]] if noes and "note" in about[call] else []
    promises = {row.contract: row.promise for row in report.outcomes}
    return document(
        "# Who sees the future",
        markdown_table(["attention or model", "version", *MODEL_CONTRACTS], table),
        "\n".join(f"- {name}: {promise}" for name, promise in promises.items()),
        "## What was found" if found else "",
        *found,
        done.missing,
        done.origin,
    )


def _file(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]  # of rate=.5 and rate=5 too
    return "-".join(["pairs", re.sub(r"\W+", "-", name).strip("-"), digest])


def _figure(name: str) -> Any:
    """Which pairs it sees under a causal mask, if it takes one; None where it cannot say."""
    subject = subject_of(name)
    layer, mask = subject.layer, masks.Causal() if subject.mask and subject.causal else None
    tries: list[dict[str, Any]] = [{"attention": layer}]
    if type(layer) is MultiHeadAttention:
        tries = [{"attention": functools.partial(layer.route, Dot())}]
        if not isinstance(layer.route, Function):  # then it may say its weights
            parts = {"score": layer.score, "bias": layer.position_bias, "route": layer.route}
            tries.insert(0, parts)
    for what in tries:
        with contextlib.suppress(Exception):  # a broken contract, and reported as such
            return attnlab.draw(mask=mask, **what).figure
    return None


if __name__ == "__main__":
    command_line.start(main)
