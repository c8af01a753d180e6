"""The flags that every training has, whatever is trained."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax

from attnlab.devices.platforms import make_cpu_devices
from attnlab.runs import processes, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, flag_of, format_value
from attnlab.training.loop import LoopSettings
from attnlab.training.parallel import (
    PARALLEL,
    Parallel,
    ShardedJit,
    ShardedState,
    mesh_sizes,
    parallel_over,
)
from attnlab.training.schedules import fitted_warmup

# Those that a resumed run may have other values of: they change nothing that is trained but the
# order of sums and, under pmap, the dropout that each device draws.
FREE = (
    "devices",
    "mesh",
    "parallel",
    "num_workers",
    "tensorboard",
    "cache_dir",
    "dry_run",
    "target",
)


def preset_flag(presets: Collection[str]) -> Any:
    """A field for the name of a preset, which `TrainFlags.presets` has; without it the first."""
    about = f"Defaults of the other flags: {', '.join(presets)}."
    return flag(next(iter(presets)), about, choices=presets)


def seeds_flag(
    default: tuple[int, ...],
    about: str = "Seeds of parameters, dropout and data; each model is trained once for each.",
) -> Any:
    """A field for seeds; three times one, as for the parts of the data, is below 2³¹."""
    return flag(default, about, least=0, below=2**29)


@dataclasses.dataclass(frozen=True)
class TrainFlags(Flags):
    """How long is trained, on what, and what is kept; a field is the flag of the same name.

    Attributes:
      without_workers: reason why no process prepares the data of an experiment; "" = some may.
      presets: other defaults of the flags, by the name that `--preset` has for them.
    """

    without_workers: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    once = True

    seeds: tuple[int, ...] = seeds_flag((0,))
    steps: int | None = flag(None, "Number of steps. Without it: the recipe's.", least=1)
    batch_size: int | None = flag(
        None, "Number of examples in a step, over all devices. Without it: the recipe's.", least=1
    )
    learning_rate: float | None = flag(
        None, "Learning rate at its peak. Without it: the recipe's.", above=0
    )
    tune: tuple[float, ...] = flag(
        (),
        "Factors, such as 0.3,1,3, by which the learning rate is multiplied in short trials before "
        "each model is trained; in each round the half with the smaller validation loss goes on "
        "to twice as many steps, at most a fourth of all, and the last one left is what the model "
        "is trained with, for every seed. Without it: no trials.",
        above=0,
    )
    validate_every: int | None = flag(
        None,
        "Number of steps between validations, each with a checkpoint. Without it: the recipe's.",
        least=1,
    )
    plateau: float | None = flag(
        None,
        "Share, such as 0.01, by which the validation loss must fall over the last fifth of the "
        "steps done so far, two validations at least, else a training ends; --steps is the most it "
        "has then. Without it: all steps.",
        above=0,
        below=1,
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
        not_with=("target", "mesh"),
    )
    mesh: str | None = flag(
        None,
        "Sizes of a mesh, such as data:4,model:2: data divides the batch and the state, model "
        "heads and hidden units, sequence positions. Without it: the batch alone is divided.",
        not_with=("devices", "parallel=pmap"),
    )
    num_workers: int = flag(
        0,
        "Number of processes that prepare the data; 0: a thread of this process, which is faster "
        "than one other. Two or more pay where the steps wait for data and cores are free. "
        "No number that is trained depends on it.",
        least=0,
    )
    dry_run: bool = flag(
        False,
        "Whether to try each model for a few steps and say how long its trainings would take; no "
        "folder of a run is made.",
    )
    target: tuple[str, ...] = flag(
        (),
        "Accelerators, such as h100 or v5e-8, which need not be here: with --dry_run a step of "
        "each model is compiled for them, for its memory and its time at their peak.",
        needs="dry_run",
    )
    tensorboard: bool = flag(False, "Whether to write TensorBoard's files (extra tensorboard).")
    cache_dir: str | None = flag(
        None,
        "Folder of trained tokenizers and compiled programs. Without it: ~/.cache/attnlab.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tune) == 1:
            raise Invalid(
                f"--tune={format_value(self.tune)}: give two factors at least, or "
                "--learning_rate alone"
            )

    @classmethod
    def implied(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The preset's values."""
        return cls.fitted(cls.presets.get(named.get("preset", ""), {}), named)

    @classmethod
    def fitted(cls, preset: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """A preset's values; a warm-up that is not named fits into the steps that are."""
        if "steps" not in named or "warmup_steps" in named:
            return preset
        field = cls.__dataclass_fields__.get("warmup_steps")
        if field is None:
            return preset
        recipe, least = preset.get(field.name, field.default), int(flag_of(field).least or 0)
        return {**preset, field.name: fitted_warmup(recipe, named["steps"], least)}

    def unmet_needs(self) -> Mapping[str, str]:
        """Of processes that prepare data: data that they could prepare."""
        if not self.num_workers or not self.without_workers:
            return {}
        return {"num_workers": f"data to prepare, but {self.without_workers}"}

    def check_named(self, named: Collection[str]) -> None:
        """Refuses flags that would count for nothing, and a warm-up without an end."""
        super().check_named(named)
        steps, warmup_steps = self.steps, getattr(self, "warmup_steps", 0)
        if "warmup_steps" in named and steps is not None and warmup_steps >= steps:
            raise Invalid(f"--warmup_steps={warmup_steps}: must be fewer than --steps={steps}")
        if steps is not None and self.validate_every is not None:
            self._require_validations(steps, self.validate_every)

    def _require_validations(self, steps: int, validate_every: int) -> None:
        validations = -(-steps // validate_every)
        if self.plateau is not None and validations < 6:
            raise Invalid(
                f"--plateau={self.plateau}: needs six validations, so that two lie in the last "
                f"fifth; {steps:,} steps have {validations}; lower --validate_every"
            )

    def loop(
        self, *, seed: int, steps: int | None = None, validate_every: int | None = None
    ) -> LoopSettings:
        """How long, and how often what.

        Args:
          seed: seed of the parameters and of dropout.
          steps: number of steps; None = the flag's.
          validate_every: number of steps between validations; None = the flag's.

        Raises:
          Invalid: there are too few validations for a plateau.
        """
        steps, validate_every = steps or self.steps, validate_every or self.validate_every
        assert steps is not None and validate_every is not None, "a recipe says them"
        self._require_validations(steps, validate_every)
        return LoopSettings(
            steps=steps,
            log_every=self.log_every,
            validate_every=validate_every,
            checkpoint_every=self.checkpoint_every or validate_every,
            accumulate=self.accumulate,
            seed=seed,
            plateau=self.plateau,
        )

    def over_devices(self, batch_sizes: Iterable[int]) -> Parallel:
        """The devices, and how they share the work.

        Args:
          batch_sizes: numbers of examples in a step, which must divide over them.

        Raises:
          Invalid: there are no devices or fewer, or a batch does not divide.
        """
        if self.target:  # nothing runs here
            return ShardedJit(provenance.devices(local=False)[:1])
        sizes = None if self.mesh is None else self._sizes(self.mesh)
        asked, said = self.devices, f"--devices={self.devices}"
        if sizes is not None:
            asked, said = math.prod(sizes.values()), f"--mesh={self.mesh}"
        if asked is not None:
            make_cpu_devices(asked)
        devices = provenance.devices(local=False)[:asked]
        if asked is not None and asked > len(devices):
            raise Invalid(f"{said}: there are {len(devices)}; give fewer")
        if processes.count() > 1:
            _require_all(said, devices)
        sharing = len(devices) if sizes is None else sizes.get("data", 1)
        self._require_divided(batch_sizes, sharing)
        return parallel_over(self.parallel, devices, sizes)

    def over_target(self, name: str, devices: Sequence[jax.Device], rows: int) -> ShardedJit:
        """How the devices of a target share a step; under pmap each has as much as under jit.

        Args:
          name: name of the target.
          devices: devices of the target, which may be absent.
          rows: number of examples in a step.

        Raises:
          Invalid: the mesh is of another number of devices, or the batch does not divide.
        """
        if self.mesh is None:
            self._require_divided([rows], len(devices))
            return ShardedJit(devices)
        sizes = self._sizes(self.mesh)
        if (size := math.prod(sizes.values())) != len(devices):
            raise Invalid(
                f"--mesh={self.mesh} is of {size} devices; --target={name} has {len(devices)}"
            )
        self._require_divided([rows], sizes.get("data", 1))
        return ShardedState(devices, sizes)

    def _require_divided(self, batch_sizes: Iterable[int], sharing: int) -> None:
        for rows in batch_sizes:
            if rows % (sharing * self.accumulate):
                raise Invalid(
                    f"--batch_size={rows}: give a multiple of devices × accumulate = "
                    f"{sharing} × {self.accumulate}"
                )

    def _sizes(self, mesh: str) -> dict[str, int]:
        """The axes of a mesh and their sizes, of "data:4,model:2"."""
        try:
            return mesh_sizes(mesh)
        except ValueError as error:
            raise Invalid(f"--mesh={mesh}: {error}") from None


def _require_all(said: str, devices: Sequence[jax.Device]) -> None:
    """Refuses to leave devices of some processes out, and processes of unlike numbers of them."""
    there = provenance.devices(local=False)
    of_each = collections.Counter(device.process_index for device in there)
    if len(set(of_each.values())) > 1:
        numbers = ", ".join(str(of_each[i]) for i in sorted(of_each))
        raise Invalid(f"the processes have {numbers} devices; start them with as many each")
    if len(devices) < len(there):
        raise Invalid(
            f"{said}: the {len(of_each)} processes have {len(there)} devices; use them all, or "
            "start fewer processes"
        )
