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

from attnlab.bench import environment, hash_quality_figures, hash_quality_report, inputs
from attnlab.bench.hash_quality import Row, Settings, measure, plan
from attnlab.bench.hash_quality_model import ByteModel, activations, train
from attnlab.records.errors import Invalid
from attnlab.records.folders import fresh_folder

INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C


def run(settings: Settings, *, output_dir: Path, out: TextIO | None = None) -> int:
    """Measures into a fresh folder; Ctrl-C keeps what is done and writes the report.

    Args:
      settings: what to measure.
      output_dir: where the fresh folder goes.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0, or 130 after Ctrl-C.

    Raises:
      Invalid: the text is too short, or the folder cannot be made.
    """
    out = out or sys.stdout

    def tell(line: str) -> None:
        print(line, file=out, flush=True)

    text = read(settings.data_files)
    trained_on, measured_on = split(text, settings.length)
    folder = fresh_folder(output_dir, "hash_quality")
    tell(f"results: {folder}")
    (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(settings), indent=2) + "\n")
    rows: list[Row] = []
    lines, status = plan(settings), 0
    try:
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
        layers = activations(model, params, measured_on[None])
        qk, v = (jnp.concatenate(some) for some in zip(*layers, strict=True))
        where = environment.describe(text)
        for i, line in enumerate(lines, 1):
            began = time.monotonic()
            for num_hashes in sorted(set(settings.rounds)):
                row = dataclasses.replace(
                    measure(line, num_hashes, qk, v, top_k=settings.top_k, seed=settings.seed),
                    bits=bits,
                    flags=dataclasses.asdict(settings),
                    environment=where,
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                )
                rows.append(row)
                with open(folder / "results.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            mass = ", ".join(
                f"{row.means['captured_mass']:.3f}" for row in rows if row.line == line
            )
            spent = time.monotonic() - began
            tell(f"[{i}/{len(lines)}] {line.title()}: mass {mass} ({spent:.0f} s)")
    except KeyboardInterrupt:
        status = INTERRUPTED
        done = "writing the report of what is done" if rows else "nothing was measured yet"
        tell(f"\ninterrupted: {done}")
    if not rows:
        return status
    planned = len(lines) * len(set(settings.rounds))
    report = hash_quality_report.markdown(rows, planned=planned)
    (folder / "report.md").write_text(report, encoding="utf-8")
    hash_quality_figures.save(rows, folder)
    tell(f"\n{hash_quality_report.table(rows)}\n\n{hash_quality_report.answer(rows)}")
    tell(f"\nreport: {folder / 'report.md'}")
    return status


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
