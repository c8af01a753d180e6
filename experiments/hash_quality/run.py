"""Trains the model, measures every line over rounds, and writes rows, report and figures."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import jax.numpy as jnp
import numpy as np
from attnlab.runs.folders import fresh_folder

from attnlab.bench import environment, inputs
from attnlab.runs.errors import Invalid
from experiments.hash_quality import figures as hash_quality_figures
from experiments.hash_quality import report as hash_quality_report
from experiments.hash_quality.lines import Line, Row, Settings, measure, plan
from experiments.hash_quality.model import ByteModel, activations, train

ROWS = "results.jsonl"
INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C


def run(
    settings: Settings, *, output_dir: Path, resume: str = "", out: TextIO | None = None
) -> int:
    """Measures into a fresh folder; Ctrl-C keeps what is done and writes the report.

    Args:
      settings: what to measure.
      output_dir: where the fresh folder goes.
      resume: a folder of these settings instead: rows that it lacks are measured, if there are
        any, and its report is written again.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0, or 130 after Ctrl-C.

    Raises:
      Invalid: the text is too short or another one, or the folder cannot be made.
    """
    out = out or sys.stdout

    def tell(line: str) -> None:
        print(line, file=out, flush=True)

    rows = kept_rows(Path(resume)) if resume else []
    lines, status = plan(settings), 0
    done = {(row.line, row.num_hashes) for row in rows}
    missing = {
        line: todo
        for line in lines
        if (todo := [n for n in sorted(set(settings.rounds)) if (line, n) not in done])
    }
    text = read(settings.data_files)
    trained_on, measured_on = split(text, settings.length)
    where = environment.describe(text)
    if missing and rows and rows[0].environment["input"] != where["input"]:
        raise Invalid(f"--resume={resume} was measured on another text; leave it and start anew")
    folder = Path(resume) if resume else fresh_folder(output_dir, "hash_quality")
    tell(f"results: {folder}")
    if not resume:
        plain = json.dumps(dataclasses.asdict(settings), indent=2)
        (folder / "settings.json").write_text(plain + "\n")
    try:
        if missing:
            tell(f"{text.name}: training for {settings.train_steps} steps")
            model = ByteModel(settings.num_layers, settings.num_heads, settings.head_dim)
            params, bits = train(
                model,
                trained_on,
                length=settings.length,
                steps=settings.train_steps,
                seed=settings.seed,
                progress=tell,
            )
            if rows and rows[0].bits != bits:
                raise Invalid(
                    f"--resume={resume} was measured on a model of {rows[0].bits} bits a byte, "
                    f"which here comes to {bits}; start anew"
                )
            layers = activations(model, params, measured_on[None])
            qk, v = (jnp.concatenate(some) for some in zip(*layers, strict=True))
        for line, todo in missing.items():
            began = time.monotonic()
            for num_hashes in todo:
                row = dataclasses.replace(
                    measure(line, num_hashes, qk, v, top_k=settings.top_k, seed=settings.seed),
                    bits=bits,
                    flags=dataclasses.asdict(settings),
                    environment=where,
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                )
                rows.append(row)
                with open(folder / ROWS, "a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            mass = ", ".join(
                f"{row.means['captured_mass']:.3f}" for row in rows if row.line == line
            )
            spent = time.monotonic() - began
            at = lines.index(line) + 1
            tell(f"[{at}/{len(lines)}] {line.title()}: mass {mass} ({spent:.0f} s)")
    except KeyboardInterrupt:
        status = INTERRUPTED
        said = "writing the report of what is done" if rows else "nothing was measured yet"
        tell(f"\ninterrupted: {said}")
    if not rows:
        return status
    planned = len(lines) * len(set(settings.rounds))
    report = hash_quality_report.markdown(rows, planned=planned)
    (folder / "report.md").write_text(report, encoding="utf-8")
    hash_quality_figures.save(rows, folder)
    tell(f"\n{hash_quality_report.table(rows)}\n\n{hash_quality_report.answer(rows)}")
    tell(f"\nreport: {folder / 'report.md'}")
    return status


def kept_rows(folder: Path) -> list[Row]:
    """The rows of an earlier run; one that was cut off while it was written is dropped.

    Raises:
      Invalid: there are none, or not of this job.
    """
    path = folder / ROWS
    try:
        whole = [x for x in path.read_text(encoding="utf-8").splitlines(True) if x.endswith("\n")]
        found = [json.loads(line) for line in whole if line.strip()]
        rows = [Row(**(one | {"line": Line(**one["line"])})) for one in found]
    except (OSError, ValueError, TypeError, KeyError):
        rows = []
    if not rows:
        raise Invalid(f"--resume={folder}: no rows of this job in {ROWS}; start anew")
    path.write_text("".join(whole), encoding="utf-8")
    return rows


def read(paths: Sequence[str]) -> inputs.Text:
    """The files' bytes one after the other; without files, the project's own sources.

    Raises:
      Invalid: a file cannot be read.
    """
    if not paths:
        return inputs.read()
    try:
        data = b"".join(Path(path).read_bytes() for path in paths)
    except OSError as error:
        raise Invalid(f"--data_files={error.filename}: {error.strerror}") from None
    return inputs.Text(" + ".join(paths), np.frombuffer(data, np.uint8))


def split(text: inputs.Text, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What to train on, and the last `length` bytes, to measure on.

    Raises:
      Invalid: there is no window left to train on.
    """
    needed = 2 * length + 1
    if text.data.size < needed:
        raise Invalid(
            f"--length={length} needs {needed} bytes, to train and to measure on; {text.name} has"
            f" {text.data.size} (give longer --data_files or a smaller --length)"
        )
    return text.data[:-length], text.data[-length:]
