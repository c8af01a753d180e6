"""Checkpoints of a training: everything that it needs to go on as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from attnlab.runs import processes, provenance
from attnlab.runs.errors import Invalid, of_system

__all__ = ["Checkpoints", "Restored", "difference"]

PACKAGES = ("attnlab", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
_LOGGER = logging.getLogger("absl")  # orbax's
_policies = ocp.training.preservation_policies


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint held.

    Attributes:
      step: number of steps that were done.
      state: state of the training, on the devices that were asked for.
      data: state of the data iterator.
      meter: state of the meter, of the steps since the last row of the curve.
    """

    step: int
    state: Any
    data: Any
    meter: dict[str, Any]


class Checkpoints:
    """A folder of checkpoints, written by orbax in the background; not all of them are kept.

    A checkpoint is whole or not there: a process killed while it writes one leaves the one before.
    Use it in `with`, which waits for the last one to be written.
    """

    def __init__(
        self,
        folder: Path,
        configuration: dict[str, Any],
        *,
        steps: Sequence[int] = (),
    ):
        """Opens or makes the folder.

        Args:
          folder: folder of this training alone.
          configuration: JSON values that make this training what it is.
          steps: steps whose checkpoints stay, as the last two do and the best one.

        Raises:
          Invalid: the checkpoints there are of another configuration; the message has the
            difference. Or the folder cannot be written.
        """
        self.folder = folder
        self.configuration = json.loads(json.dumps(configuration))
        last = _policies.LatestN(2)
        best = _policies.BestN(
            get_metric_fn=_goodness,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        try:
            self._orbax = ocp.training.Checkpointer(
                folder.resolve(),
                preservation_policy=_policies.AnyPreservationPolicy(
                    [last, best, _policies.CustomSteps(steps)]
                ),
                cleanup_tmp_directories=True,
            )
        except OSError as error:
            raise Invalid(
                f"{folder}: checkpoints cannot be kept there: {of_system(error)}"
            ) from None
        except json.JSONDecodeError as error:
            file = f"{folder}/*/metrics/metrics"
            raise Invalid(f"{file}: one cannot be read; delete its checkpoint's folder") from error
        self._writing: Any = None
        self._require_same()

    def __enter__(self) -> Checkpoints:
        _LOGGER.addFilter(_is_not_raised)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self._disk_errors():
                self._orbax.close()
        finally:
            _LOGGER.removeFilter(_is_not_raised)

    def _require_same(self) -> None:
        of_each = (self._metadata(step).get("configuration") for step in reversed(self.steps))
        saved = next((x for x in of_each if x is not None), self.configuration)
        mine = dict(self.configuration)
        if "flags" in saved and "flags" in mine:
            # A flag that is newer than the checkpoint has its default in a resumed run.
            mine["flags"] = {k: x for k, x in mine["flags"].items() if k in saved["flags"]}
        if saved != mine:
            raise Invalid(
                f"{self.folder} holds checkpoints of another training: {difference(saved, mine)}; "
                "give another folder, or the same flags"
            )

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    @property
    def latest_step(self) -> int | None:
        """The step of the last checkpoint; None if there is none."""
        return None if self._orbax.latest is None else self._orbax.latest.step

    @property
    def best_step(self) -> int | None:
        """The last step with the smallest validation; the last of all where none was validated."""
        validated = [c for c in self._orbax.checkpoints if c.metrics]
        if not validated:
            return self.latest_step
        return max(validated, key=lambda c: (_goodness(c.metrics), c.step)).step

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: Any,
        meter: dict[str, Any],
        validation: float | None = None,
        wait: bool = False,
    ) -> None:
        """Saves in the background, or with `wait` returns when it is on disk.

        Args:
          step: number of steps done.
          state: arrays to keep.
          data: state of the data iterator.
          meter: state of the meter.
          validation: number by which the best checkpoint is known, the smallest; None = not known.
          wait: whether to return only when the checkpoint is on disk.

        Raises:
          OSError: this checkpoint, or the one before, cannot be written; those before it are kept.
        """
        if step == self.latest_step:
            return
        metadata = {
            "configuration": self.configuration,
            "versions": {name: provenance.version(name) for name in PACKAGES},
            "data": data,
            "meter": meter,
        }
        metrics = None if validation is None else {"validation": validation}
        with self._disk_errors():
            self._writing = self._orbax.save_checkpointables_async(
                step, {"state": state}, force=True, metrics=metrics, custom_metadata=metadata
            )
        if wait:
            self._wait()

    def _wait(self) -> None:
        if self._writing is not None:
            with self._disk_errors():
                self._writing.result()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raises errors of the disk as OSError; orbax has them in the text of a ValueError."""
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                raise
            # Orbax gives up a save after 20 minutes; a process may be suspended for as long.
            number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
            raise OSError(number, error.strerror or str(error), str(self.folder)) from error
        except ValueError as error:
            code = re.search(r"os_error_code='(\d+)'", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(self.folder)) from error

    def restore_latest(
        self, abstract: Any, shardings: Any, say: Callable[[str], None]
    ) -> Restored | None:
        """The newest checkpoint that can be read, as by `restore`; None where there is none.

        `say` shows a line to the user: those after it cannot be read, and are put aside.

        Raises:
          Invalid: there are checkpoints, and none can be read.
        """
        damaged: dict[int, Invalid] = {}
        for step in reversed(self.steps):
            try:
                restored = self.restore(abstract, shardings, step)
            except Invalid as error:
                damaged[step] = error
                continue
            for later, why in damaged.items():
                aside = processes.agree(functools.partial(self._move_aside, later))
                say(f"{why}; it is now in {aside}, and that of step {step} is taken")
            self._orbax.reload()
            return restored
        for why in damaged.values():
            raise Invalid(f"{why}, nor any before it; delete {self.folder} to begin anew") from why
        return None

    def restore(self, abstract: Any, shardings: Any, step: int) -> Restored:
        """A checkpoint on the devices of `shardings`, whichever it was saved from.

        Args:
          abstract: state of the training, or its shapes and dtypes.
          shardings: sharding of each array of the state, as a tree like it.
          step: number of the checkpoint's step.

        Raises:
          Invalid: it is damaged.
          OSError: the disk cannot be read now; and what JAX raises where memory is short.
        """
        self._wait()
        target = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            abstract,
            shardings,
        )
        try:
            with self._disk_errors():
                state = self._orbax.load_checkpointables(step, {"state": target})["state"]
                metadata = self._metadata(step)
            return Restored(step, state, metadata["data"], metadata["meter"])
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # of a damaged file orbax raises whatever its readers do
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                raise
            folder, kind = self.folder / str(step), type(error).__name__
            for file in filter(Path.is_file, folder.rglob("*")):  # else what the disk said is lost
                with file.open("rb") as opened:
                    opened.read(1)
            raise Invalid(f"{folder}: this checkpoint cannot be read ({kind})") from error

    def _move_aside(self, step: int) -> str:
        aside = tempfile.mkdtemp(prefix=f"{self.folder.name}-damaged-", dir=self.folder.parent)
        return shutil.move(self.folder / str(step), aside)

    def _metadata(self, step: int) -> dict[str, Any]:
        return self._orbax.checkpointables_metadata(step).custom_metadata


def _is_not_raised(record: logging.LogRecord) -> bool:
    """False for what orbax logs with its traceback, in each of its threads, and raises as well."""
    return not (record.exc_info and "orbax" in record.pathname)


def _goodness(metrics: dict[str, float]) -> float:
    """A number that is the larger the better a checkpoint is; least where validation has none."""
    loss = metrics["validation"]
    return -math.inf if math.isnan(loss) else -loss


def difference(there: Any, here: Any, name: str = "") -> str:
    """What differs between two JSON values, "name is X there and Y here" each, in one line."""
    if isinstance(there, dict) and isinstance(here, dict):
        parts = [
            difference(there.get(key), here.get(key), f"{name}.{key}" if name else key)
            for key in sorted(there.keys() | here.keys())
            if there.get(key) != here.get(key)
        ]
        return ", ".join(parts)
    return f"{name} is {json.dumps(there)} there and {json.dumps(here)} here"
