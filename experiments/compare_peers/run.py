"""Runs the pairs: values first, then memory, then the two sides in turns.

The turns are short and alternate in order, so what else the machine does falls on both sides alike.
"""

import contextlib
import dataclasses
import datetime
import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from attnlab.runs.folders import fresh_folder

from attnlab.runs.errors import Invalid
from experiments.compare_peers import pairs as peers
from experiments.compare_peers import report as peers_report
from experiments.compare_peers.pairs import Outcome, Pair
from experiments.compare_peers.process import Process, SideError

ROWS, SETTINGS, ERRORS = "results.jsonl", "settings.json", "errors.log"
INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C
SAME = 1e-4  # of the largest value, in float32: rounding in sums of some thousand terms
PAUSE_SECONDS = 0.01  # OpenMP's threads spin for some milliseconds after their work


def require_packages(pairs: Sequence[Pair]) -> None:
    """Refuses pairs whose peer is not installed.

    Raises:
      ValueError: naming what is missing and how to install it.
    """
    missing = {
        package: pair.row
        for pair in pairs
        if (package := peers.PACKAGES.get(pair.peer.program))
        and importlib.util.find_spec(package) is None
    }
    if missing:
        raise ValueError(
            f"not installed: {', '.join(missing)}; they are in the extra compat, which "
            "`launch/local --extra=compat compare_peers` installs (or choose other --rows)"
        )


def compare(
    pairs: Sequence[Pair],
    *,
    repeats: int,
    seconds: float,
    output_dir: Path,
    resume: Path | None = None,
    out: TextIO | None = None,
) -> int:
    """Measures what is missing of the pairs; Ctrl-C keeps what is done and writes the report.

    Args:
      pairs: what to compare.
      repeats: timed turns of each pair.
      seconds: no turn starts that would end later than this after the pair's first.
      output_dir: where the fresh folder goes.
      resume: the folder of an earlier run to complete instead; failures are tried again.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0, or 130 after Ctrl-C.

    Raises:
      ValueError: a peer is not installed, or the folder cannot be used.
    """
    out = out or sys.stdout
    require_packages(pairs)
    flags = {
        "rows": list(dict.fromkeys(pair.row for pair in pairs)),
        "repeats": repeats,
        "seconds": seconds,
    }
    if resume is None:
        folder = fresh_folder(output_dir, "compare_peers")
        (folder / SETTINGS).write_text(json.dumps(flags, indent=2) + "\n", encoding="utf-8")
    else:
        folder = resume
    found = kept(folder)
    missing = [pair for pair in pairs if pair not in found or found[pair].status != "ok"]
    print(f"results: {folder}\n{len(missing)} of {len(pairs)} pairs to run", file=out, flush=True)
    status = 0
    try:
        for i, pair in enumerate(missing, 1):
            title = f"[{i}/{len(missing)}] {pair.row}: {peers_report.title(pair)}"
            print(f"{title} … ", end="", file=out, flush=True)
            with _log(folder) as log:
                found[pair] = outcome = dataclasses.replace(
                    measure(pair, repeats=repeats, seconds=seconds, log=log),
                    flags=flags,
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                )
                if outcome.status != "ok":
                    with open(folder / ERRORS, "a", encoding="utf-8") as file:
                        file.write(f"{title}\n{log.read_text(errors='replace')}\n")
            with open(folder / ROWS, "a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            print(peers_report.line(outcome), file=out, flush=True)
    except KeyboardInterrupt:
        status = INTERRUPTED
        print("\ninterrupted: writing the report of what is done", file=out)
    outcomes = [found[pair] for pair in pairs if pair in found]
    report = peers_report.markdown(outcomes, planned=len(pairs))
    (folder / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{peers_report.tables(outcomes)}", file=out)
    print(f"\nreport: {folder / 'report.md'}", file=out, flush=True)
    if status:
        print(f"to complete it: --resume={folder}", file=out, flush=True)
    return status


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings that a folder of this job was made with.

    Raises:
      Invalid: it is not one.
    """
    try:
        found = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return {name: found[name] for name in ("rows", "repeats", "seconds")}
    except (OSError, ValueError, KeyError, TypeError):
        raise Invalid(
            f"--resume={folder}: no {SETTINGS} of this job there; give a folder that it made"
        ) from None


def kept(folder: Path) -> dict[Pair, Outcome]:
    """The last row of each pair; a line that was cut off while it was written is removed.

    Raises:
      Invalid: another line cannot be read.
    """
    try:
        lines = (folder / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]
        (folder / ROWS).write_text("".join(lines), encoding="utf-8")
    found: dict[Pair, Outcome] = {}
    for number, line in enumerate(lines, 1):
        try:
            outcome = peers.from_json(line)
        except (ValueError, KeyError, TypeError):
            raise Invalid(
                f"--resume={folder}: line {number} of {ROWS} is no row of this job; remove it"
            ) from None
        found[outcome.pair] = outcome
    return found


@contextlib.contextmanager
def _log(folder: Path) -> Iterator[Path]:
    """Where the sides of one pair write, for as long as it takes."""
    path = folder / f"{ERRORS}.part"
    path.touch()
    try:
        yield path
    finally:
        path.unlink()


def measure(pair: Pair, *, repeats: int, seconds: float, log: Path) -> Outcome:
    """One pair's outcome, whatever happens to it; without `flags` and `time`."""
    known: dict[str, Any] = {}
    timed = (pair.ours, pair.peer)
    try:
        if pair.checked and pair.checked != timed:
            a, b = pair.checked
            with Process(a, log, check=True) as ours, Process(b, log, check=True) as peer:
                known["difference"] = _difference(ours, peer)
        with Process(pair.ours, log) as ours, Process(pair.peer, log) as peer:
            known["environment"] = ours.environment
            if pair.checked == timed:
                known["difference"] = _difference(ours, peer)
            known["ours_bytes"], known["peer_bytes"] = ours.ask("memory"), peer.ask("memory")
            if pair.timed:
                times = _in_turns(ours, peer, repeats, seconds)
                known["ours_seconds"], known["peer_seconds"] = times
        return Outcome(pair, **known)
    except SideError as error:
        return Outcome(pair, "failed", str(error), **known)


def _in_turns(
    ours: "Process", peer: "Process", repeats: int, seconds: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of a call of ours and of the peer's, taken side by side."""
    taken: dict[Process, list[float]] = {ours: [], peer: []}
    began = time.monotonic()
    for turn in range(repeats):
        used = time.monotonic() - began
        if turn and used * (turn + 1) / turn > seconds:
            break
        for side in (ours, peer) if turn % 2 == 0 else (peer, ours):
            time.sleep(PAUSE_SECONDS)
            taken[side].append(side.ask("time"))
    return tuple(taken[ours]), tuple(taken[peer])


def _difference(ours: Process, peer: Process) -> float:
    """The largest |ours − peer's| relative to the largest |peer's|; refuses more than `SAME`."""
    found = 0.0
    for x, y in zip(ours.ask("values"), peer.ask("values"), strict=True):
        if x.shape != y.shape:
            raise SideError(f"the shapes of the values differ: {x.shape} and {y.shape}")
        error = float(np.max(np.abs(x - y)) / np.max(np.abs(y)))
        found = max(found, error if math.isfinite(error) else math.inf)
    if found > SAME:
        raise SideError(f"the values differ by {found:.1e} of the largest; at most {SAME:.0e} may")
    return found
