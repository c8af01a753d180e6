"""The command line of an experiment that trains, and so can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from attnlab.training.meter import Diverged
from experiments.translate.interrupts import INTERRUPTED
from experiments.translate.run_folder import saved_settings

__all__ = ["run_experiment"]


def run_experiment(
    name: str,
    argv: list[str],
    *,
    doc: str | None,
    helps: Mapping[str, str],
    defaults: Any,
    run: Callable[[Any, Path, str], int],
) -> int:
    """Parses and runs; returns the exit status.

    Args:
      name: of the experiment, before what is said of an error.
      argv: the command line.
      doc: what --help begins with.
      helps: of each setting.
      defaults: settings; those of the folder that --resume names come before them.
      run: takes settings, the folder for results and the folder to go on in, "" for none.

    Returns:
      What `run` returns; 2 for a bad flag and 1 for a training that diverged, each said in one
      line; 130 for Ctrl-C before there was anything to keep.
    """
    try:
        resume = command_line.resumed(argv)
        shown = saved_settings(resume, type(defaults)) if resume else defaults
        given = command_line.flags_of(shown, helps, resumes=True)
        if not command_line.parse(given, argv, doc):
            return 0
        return run(command_line.settings_of(given, defaults), Path(given.output_dir), resume)
    except (flags.Error, Invalid) as error:
        return command_line.refuse(name, error)
    except KeyboardInterrupt:
        print(f"{name}: interrupted before anything was made", file=sys.stderr)
        return INTERRUPTED
    except Diverged as error:
        print(
            f"{name}: {error}; the checkpoints before it are kept; try a smaller --learning_rate",
            file=sys.stderr,
        )
        return 1
