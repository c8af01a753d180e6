"""Runs of other experiments that are made up, in place of those that `tables` would start."""

import json
from pathlib import Path


def keep_run(words, lines):
    """Keeps lines as the results of a run, in the folder that its words name."""
    name = words[0].removeprefix("experiments.")
    place = next(word.partition("=")[2] for word in words if word.startswith("--output_dir="))
    folder = Path(place) / f"{name}-1"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def make_line(seed, scores, **axes):
    """A line of a training."""
    cell = {"axes": axes, "seed": seed}
    return {"cell": cell, "scores": scores, "environment": {"revision": "abc"}}
