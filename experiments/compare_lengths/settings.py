"""The main job's settings: one value a flag, checked before anything starts."""

import dataclasses
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from attnlab.bench import inputs, mechanisms, sharding, topology
from attnlab.bench.case import ATTENTION, PASSES, TRAIN_STEP, Case
from attnlab.bench.targets import Target, parse
from attnlab.runs.command_line import from_plain
from attnlab.runs.errors import Invalid

DTYPES = ("float32", "bfloat16", "float16")
PARALLEL = ("jit", "pmap")
AUTO = "auto"
LSH_WAYS = (AUTO, "pallas")
PLAIN = ("multi_head", "additive", "window", "lsh")
# As `training_programs` has them, which imports the models: seconds that --help should not take.
PROGRAMS = (ATTENTION, "translate", "language_model", "bert")
IN_MODELS = ("multi_head", "window", "lsh", "additive")
FOR_TARGETS: dict[str, Any] = {"lengths": (1024, 4096, 16384, 65536, 262144)}
FOR_PROGRAMS: dict[str, Any] = {
    "lengths": (1024, 4096, 16384),
    "mechanisms": ("multi_head", "window", "lsh"),
}
FOR_WAYS: dict[str, Any] = {"mechanisms": PLAIN}  # --implementation says of each how


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to compare; a field is the flag of the same name.

    A mechanism is written "additive", computed as `implementation` says, each way a line, or
    "additive:dense", which is one line.
    """

    mechanisms: tuple[str, ...] = (
        "multi_head",
        "multi_head:dense",
        "additive",
        "additive:dense",
        "window",
        "lsh",
    )
    lengths: tuple[int, ...] = (512, 1024, 2048, 3072, 4096, 8192)
    batch: int = 1
    num_heads: int = 4
    head_dim: int = 64
    dtype: str = "float32"
    causal: bool = True
    passes: tuple[str, ...] = PASSES
    implementation: tuple[str, ...] = (AUTO,)
    ops_only: bool = False
    parallel: str = "jit"
    devices: int | None = None
    repeats: int = 5
    case_seconds: float = 10.0
    case_gib: float = 8.0
    window: int = 128
    num_hashes: int = 4
    chunk_size: int = 64
    input: str | None = None
    target: tuple[str, ...] = ()
    shard: str | None = None
    program: str = ATTENTION
    num_layers: int = 6
    vocab_size: int = 32000

    def __post_init__(self) -> None:
        """Checks what can be checked without a device.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        _choose("mechanisms", self.mechanisms, mechanisms.NAMES, self._names())
        _choose("passes", self.passes, PASSES)
        _choose("implementation", self.implementation, (AUTO, *mechanisms.IMPLEMENTATIONS))
        self._check_ways()
        _choose("dtype", (self.dtype,), DTYPES)
        _choose("parallel", (self.parallel,), PARALLEL)
        if not self.lengths:
            raise Invalid("--lengths= is empty; give numbers of tokens, such as 256,1024,4k")
        for name in ("lengths", "batch", "num_heads", "head_dim", "repeats", "window"):
            _positive(name, getattr(self, name))
        for name in ("num_hashes", "chunk_size", "num_layers", "vocab_size"):
            _positive(name, getattr(self, name))
        for name in ("case_seconds", "case_gib"):
            _positive(name, getattr(self, name))
        self._check_targets()
        if self.devices is not None:
            _positive("devices", self.devices)
            self._divide(self.devices)
        if self.input is not None and not Path(self.input).is_file():
            raise Invalid(f"--input={self.input}: no such file; give a file of text")
        inputs.read(self.input)

    def cases(self, local_devices: int) -> list[Case]:
        """Every case, length by length: however early a run ends, it compares all mechanisms.

        Args:
          local_devices: how many devices the machine has.

        Raises:
          Invalid: the batch or `devices` does not suit them.
        """
        if self.target:
            return self._cases_of_targets()
        if self.devices is not None and self.devices > local_devices:
            raise Invalid(f"--devices={self.devices}: this machine has {local_devices}; give fewer")
        everything = local_devices if self.parallel == "pmap" else 1
        devices = self.devices or everything
        self._divide(devices)
        return self._cases(self.passes, devices=devices)

    def targets(self) -> list[Target]:
        """The accelerators to compile for, each once; none: what is there is measured."""
        return list(dict.fromkeys(map(parse, self.target)))

    def _cases_of_targets(self) -> list[Case]:
        cases = []
        for target in self.targets():
            options: dict[str, Any] = {"target": target.name, "shard": self.shard}
            passes = self.passes
            if self.program != ATTENTION:
                passes = (TRAIN_STEP,)
                options |= {"program": self.program, "num_layers": self.num_layers}
                options |= {"vocab_size": self.vocab_size}
            cases += self._cases(passes, devices=target.devices, **options)
        return cases

    def _cases(self, passes: tuple[str, ...], **options: Any) -> list[Case]:
        fixed = ("batch", "num_heads", "head_dim", "dtype", "causal", "ops_only", "parallel")
        sizes = ("window", "num_hashes", "chunk_size")
        options |= {name: getattr(self, name) for name in (*fixed, *sizes)}
        return [
            Case(name, length, one, implementation=way, **options)
            for length in sorted(set(self.lengths))
            for name, way in self._lines()
            for one in dict.fromkeys(passes)
        ]

    def check_used(self, named: Collection[str]) -> None:
        """Refuses flags that would count for nothing.

        Args:
          named: the flags that the command line names.

        Raises:
          Invalid: one of them is not used; the message says why.
        """
        names, program = self._names(), self.program != ATTENTION
        ways = {way or AUTO for _, way in self._lines()}
        others = ", ".join(way for way in self.implementation if way not in ways)
        unused = (
            ("repeats case_seconds case_gib input", self.target, "with --target nothing runs"),
            ("passes causal ops_only", program, f"--program={self.program} settles that"),
            ("num_layers vocab_size", not program, "they are of the model of a --program"),
            ("window", "window" not in names, "window is not among --mechanisms"),
            ("num_hashes chunk_size", "lsh" not in names, "lsh is not among --mechanisms"),
            ("implementation", others, f"none of --mechanisms is computed by {others}"),
        )
        for flags, idle, why in unused:
            for flag in flags.split():
                if flag in named and idle:
                    raise Invalid(f"--{flag} would count for nothing: {why}; leave it out")

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Settings from plain values, lists becoming tuples."""
        return from_plain(cls, values)

    def _check_targets(self) -> None:
        """What is said of accelerators that are not there, and of what only they have."""
        _choose("program", (self.program,), PROGRAMS)
        if self.shard is not None:
            _choose("shard", (self.shard,), sharding.SHARDS)
        if not self.target:
            for flag, default in (("program", ATTENTION), ("shard", None)):
                if getattr(self, flag) != default:
                    raise Invalid(f"--{flag} needs --target, such as --target=v5e:2x4")
            return
        for flag, default in (("devices", None), ("parallel", "jit")):
            if getattr(self, flag) != default:
                raise Invalid(f"--{flag} is for devices that are there; drop it, or --target")
        if self.program != ATTENTION:
            _choose("mechanisms", self.mechanisms, IN_MODELS, self._names())
            if self.shard not in (None, "batch"):
                raise Invalid(f"--shard={self.shard}: a training step is split by batch; say that")
        for target in self.targets():
            self._check_split(target)
            topology.require_compiler(target)

    def _check_split(self, target: Target) -> None:
        if self.shard is None:
            if target.devices > 1:
                raise Invalid(
                    f"--target={target.name} has {target.devices} devices; say what is split over "
                    "them: --shard=batch, heads or sequence"
                )
            return
        if target.devices == 1:
            raise Invalid(
                f"--target={target.name} is one device, with nothing to split; drop --shard, or "
                f"give a slice, such as --target={target.device.name}:{target.device.slices[-1]}"
            )
        flag = {"batch": "batch", "heads": "num_heads", "sequence": "lengths"}[self.shard]
        sizes = getattr(self, flag)
        for size in sizes if isinstance(sizes, tuple) else (sizes,):
            if size % target.devices:
                raise Invalid(
                    f"--{flag}: {size} does not divide over the {target.devices} devices of "
                    f"{target.name}; give a multiple of {target.devices}"
                )

    def _names(self) -> tuple[str, ...]:
        return tuple(line.partition(":")[0] for line in self.mechanisms)

    def _check_ways(self) -> None:
        for line in self.mechanisms:
            name, colon, way = line.partition(":")
            valid = (AUTO, *mechanisms.IMPLEMENTATIONS) if name in mechanisms.EXACT else LSH_WAYS
            if colon and way not in valid:
                raise Invalid(
                    f"--mechanisms={line}: {name} has no {way!r}; valid: {', '.join(valid)}"
                )

    def _lines(self) -> list[tuple[str, str | None]]:
        """A mechanism and how it is computed, each once."""
        found: list[tuple[str, str]] = []
        for line in self.mechanisms:
            name, colon, way = line.partition(":")
            ways = (way,) if colon else self.implementation
            if name not in mechanisms.EXACT:  # it has its own way, and a kernel
                ways = tuple(way for way in ways if way in LSH_WAYS) or (AUTO,)
            found += [(name, way) for way in ways]
        return [(name, None if way == AUTO else way) for name, way in dict.fromkeys(found)]

    def _divide(self, devices: int) -> None:
        if self.batch % devices:
            raise Invalid(
                f"--batch={self.batch} does not divide over {devices} devices; "
                f"give a multiple of {devices}, such as --batch={devices}"
            )


def _choose(
    flag: str, values: tuple[str, ...], valid: tuple[str, ...], names: tuple[str, ...] | None = None
) -> None:
    if not values:
        raise Invalid(f"--{flag}= is empty; valid: {', '.join(valid)}")
    for value in names or values:
        if value not in valid:
            raise Invalid(f"--{flag}={','.join(values)}: no {value!r}; valid: {', '.join(valid)}")


def _positive(flag: str, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if not 0 < one < math.inf:
            what = (
                "not finite; give a number" if one == math.inf else "not positive; give 1 or more"
            )
            raise Invalid(f"--{flag}: {one} is {what}")
