"""The flags that every training has, whatever is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from attnlab.platforms import make_cpu_devices
from attnlab.runs import provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag
from attnlab.training.loop import LoopSettings
from attnlab.training.parallel import PARALLEL, Parallel, parallel_over

__all__ = ["FREE", "TrainFlags"]

# Those that a resumed run may have other values of.
FREE = ("devices", "parallel", "num_workers", "tensorboard")


@dataclasses.dataclass(frozen=True)
class TrainFlags(Flags):
    """How long is trained, on what, and what is kept; a field is the flag of the same name."""

    steps: int | None = flag(None, "Number of steps. Without it: the recipe's.", least=1)
    batch_size: int | None = flag(
        None, "Number of examples in a step, over all devices. Without it: the recipe's.", least=1
    )
    learning_rate: float | None = flag(
        None, "Learning rate at its peak. Without it: the recipe's.", above=0
    )
    validate_every: int | None = flag(
        None,
        "Number of steps between validations, each with a checkpoint. Without it: the recipe's.",
        least=1,
    )
    checkpoint_every: int | None = flag(
        None, "Number of steps between checkpoints. Without it: validate_every.", least=1
    )
    log_every: int = flag(50, "Number of steps between rows of the curve.", least=1)
    accumulate: int = flag(
        1, "Number of parts of a batch, one after the other, to save memory.", least=1
    )
    parallel: str = flag(
        "jit", "Way to use several devices: jit shards the batch over them, pmap splits it.",
        choices=PARALLEL,
    )  # fmt: skip
    devices: int | None = flag(
        None,
        "Number of devices; on a CPU as many as asked for are made. Without it: all.",
        least=1,
    )
    num_workers: int = flag(
        0,
        "Number of processes that prepare the data; with 0 a thread of this one does. No number "
        "that is trained depends on it.",
        least=0,
    )
    tensorboard: bool = flag(False, "Whether to write TensorBoard's files (extra tensorboard).")

    def loop(self, *, steps: int, validate_every: int, seed: int) -> LoopSettings:
        """How long, and how often what.

        Args:
          steps: number of steps, of the recipe or of the flag.
          validate_every: number of steps between validations, likewise.
          seed: seed of the parameters and of dropout.
        """
        return LoopSettings(
            steps=steps,
            log_every=self.log_every,
            validate_every=validate_every,
            checkpoint_every=self.checkpoint_every or validate_every,
            accumulate=self.accumulate,
            seed=seed,
        )

    def over_devices(self, batch_sizes: Iterable[int]) -> Parallel:
        """The devices, and how they share the work.

        Args:
          batch_sizes: numbers of examples in a step, which must divide over them.

        Raises:
          Invalid: there are no devices or fewer, or a batch does not divide.
        """
        if self.devices is not None:
            make_cpu_devices(self.devices)
        devices = provenance.devices(local=False)[: self.devices]
        if self.devices is not None and self.devices > len(devices):
            raise Invalid(f"--devices={self.devices}: there are {len(devices)}; give fewer")
        for rows in batch_sizes:
            if rows % (len(devices) * self.accumulate):
                raise Invalid(
                    f"--batch_size={rows}: give a multiple of devices × accumulate = "
                    f"{len(devices)} × {self.accumulate}"
                )
        return parallel_over(self.parallel, devices)
