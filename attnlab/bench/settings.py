"""The main job's settings: one value a flag, checked before anything starts."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

from attnlab.bench import inputs, mechanisms
from attnlab.bench.case import PASSES, Case
from attnlab.records.errors import Invalid

DTYPES = ("float32", "bfloat16", "float16")
PARALLEL = ("jit", "pmap")
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to compare; a field is the flag of the same name."""

    mechanisms: tuple[str, ...] = ("additive", "dot", "general", "multi_head", "window", "lsh")
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
    case_seconds: float = 20.0
    window: int = 128
    num_hashes: int = 4
    chunk_size: int = 64
    input: str | None = None

    def __post_init__(self) -> None:
        """Checks what can be checked without a device.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        _choose("mechanisms", self.mechanisms, mechanisms.NAMES)
        _choose("passes", self.passes, PASSES)
        _choose("implementation", self.implementation, (AUTO, *mechanisms.IMPLEMENTATIONS))
        _choose("dtype", (self.dtype,), DTYPES)
        _choose("parallel", (self.parallel,), PARALLEL)
        if not self.lengths:
            raise Invalid("--lengths= is empty; give numbers of tokens, such as 256,1024,4096")
        for name in ("lengths", "batch", "num_heads", "head_dim", "repeats", "window"):
            _positive(name, getattr(self, name))
        for name in ("num_hashes", "chunk_size", "case_seconds"):
            _positive(name, getattr(self, name))
        if self.devices is not None:
            _positive("devices", self.devices)
            self._divide(self.devices)
        if self.input is not None and not Path(self.input).is_file():
            raise Invalid(f"--input={self.input}: no such file; give a file of text")
        inputs.read(self.input)

    def cases(self, local_devices: int) -> list[Case]:
        """Every case, one mechanism after the other, short lengths first.

        Args:
          local_devices: how many devices the machine has.

        Raises:
          Invalid: the batch or `devices` does not suit them.
        """
        if self.devices is not None and self.devices > local_devices:
            raise Invalid(f"--devices={self.devices}: this machine has {local_devices}; give fewer")
        everything = local_devices if self.parallel == "pmap" else 1
        devices = self.devices or everything
        self._divide(devices)
        fixed = ("batch", "num_heads", "head_dim", "dtype", "causal", "ops_only", "parallel")
        sizes = ("window", "num_hashes", "chunk_size")
        common: dict[str, Any] = {name: getattr(self, name) for name in (*fixed, *sizes)}
        return [
            Case(name, length, passes, implementation=way, devices=devices, **common)
            for name in dict.fromkeys(self.mechanisms)
            for way in self._ways(name)
            for length, passes in itertools.product(sorted(set(self.lengths)), self.passes)
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        """Settings from plain values, lists becoming tuples."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        try:
            return cls(**fields)
        except TypeError:
            known = ", ".join(field.name for field in dataclasses.fields(cls))
            raise Invalid(f"settings of another version; this one has {known}") from None

    def _ways(self, mechanism: str) -> list[str | None]:
        if mechanism not in mechanisms.EXACT:
            return [None]  # it has its own way
        return [None if way == AUTO else way for way in dict.fromkeys(self.implementation)]

    def _divide(self, devices: int) -> None:
        if self.batch % devices:
            raise Invalid(
                f"--batch={self.batch} does not divide over {devices} devices; "
                f"give a multiple of {devices}, such as --batch={devices}"
            )


def _choose(flag: str, values: tuple[str, ...], valid: tuple[str, ...]) -> None:
    if not values:
        raise Invalid(f"--{flag}= is empty; valid: {', '.join(valid)}")
    for value in values:
        if value not in valid:
            raise Invalid(f"--{flag}={','.join(values)}: no {value!r}; valid: {', '.join(valid)}")


def _positive(flag: str, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if not one > 0:
            raise Invalid(f"--{flag}: {one} is not positive; give 1 or more")
