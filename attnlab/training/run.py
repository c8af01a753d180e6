"""A training as a part of a run: what ends it early ends the run, as `runs.loop` takes it."""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from attnlab.data.cache import default_cache_dir, writable
from attnlab.runs import processes, provenance
from attnlab.runs.allocator import keep_freed_memory
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import Terminated
from attnlab.training.flags import TrainFlags
from attnlab.training.loop import LoopSettings, Task, Trained, train
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel


def prepare(flags: TrainFlags, batch_sizes: Iterable[int]) -> Parallel:
    """Makes this process ready to train; returns the devices, and how they share the work.

    Raises:
      Invalid: a batch does not divide over the devices, or TensorBoard is asked for and not
        installed.
    """
    if flags.tensorboard:
        _tensorboard_writer()
    if jax.config.values["jax_platforms"] == "cpu":  # an accelerator has memory of its own
        keep_freed_memory()
    keep_compiled(flags.cache_dir)
    return flags.over_devices(batch_sizes)


def keep_compiled(cache_dir: str | None = None) -> None:
    """Keeps programs that are compiled from now on: a resumed or second run compiles them no more.

    They are those of this processor's instructions and this version of jaxlib: compiled for another
    processor of the same name, they could stop with SIGILL. A cache of JAX's own that is set
    (JAX_COMPILATION_CACHE_DIR) stays.

    Args:
      cache_dir: folder of prepared data; None = `~/.cache/attnlab`.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        instructions = zlib.crc32(" ".join(provenance.instructions()).encode())
        processor = f"{provenance.processor()}-{instructions:08x}"
        names = f"{processor}-jaxlib-{provenance.version('jaxlib')}"
        parent = default_cache_dir() if cache_dir is None else Path(cache_dir)
        folder = parent / "compiled" / re.sub(r"\W+", "-", names)
        jax.config.update("jax_compilation_cache_dir", str(writable(folder)))


def run_training(
    task: Task[Any],
    *,
    settings: LoopSettings,
    optimizer: OptimizerSettings,
    parallel: Parallel,
    folder: Path,
    tensorboard: bool = False,
) -> Trained:
    """Trains to the last step in a folder, from its last checkpoint if it has one.

    Args:
      task: model, objective and data.
      settings: number of steps, and of steps between rows, validations and checkpoints.
      optimizer: optimizer of the parameters.
      parallel: devices, and how they share the work.
      folder: place for this training alone, made if need be.
      tensorboard: whether to write TensorBoard's files as well.

    Raises:
      KeyboardInterrupt: Ctrl-C, or as `Terminated` SIGTERM, was answered by a checkpoint.
      Diverged: loss or gradient are not finite.
      Invalid: the folder belongs to another training or cannot be written.
    """
    if processes.is_first():
        folder.mkdir(exist_ok=True)
    processes.barrier()
    say()  # the title of what is trained stands in the line that this ends
    with contextlib.ExitStack() as stack:
        on_row = None
        if tensorboard and processes.is_first():
            writer = _tensorboard_writer()(str(folder / "tensorboard"))
            on_row = functools.partial(_add_row, stack.enter_context(contextlib.closing(writer)))
        trained = train(
            task,
            settings=settings,
            optimizer=optimizer,
            parallel=parallel,
            folder=folder,
            on_row=on_row,
            say=say,
        )
    if trained.stopped_by is not None:
        processes.barrier()  # one that ends interrupts the others: all have saved by now
        raise Terminated if trained.stopped_by == signal.SIGTERM else KeyboardInterrupt
    return trained


def _tensorboard_writer() -> Any:
    """The class that writes event files, of a package that need not be installed."""
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise Invalid(
            "--tensorboard needs the package tensorboard, which is not installed: run "
            "`launch/local --extra=tensorboard NAME --tensorboard …`, or `pip install "
            "tensorboard` in your own environment, or give --notensorboard"
        ) from None
    return Writer


def _add_row(writer: Any, row: dict[str, Any]) -> None:
    """Writes every number of a row of metrics.jsonl as KIND/NAME over steps."""
    for name, x in row.items():
        if name not in ("kind", "step"):
            writer.add_scalar(f"{row['kind']}/{name}", x, step=row["step"])
    writer.flush()
