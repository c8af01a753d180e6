"""Cases to be measured, and results of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnlab.mechanisms.attentions import Attention, Model, kind_of

PASSES = ("forward", "forward_backward")
DECODE = "decode"  # the pass of one more token, with a cache of those before it
ACCURACY = "accuracy"  # the pass forward, for its distance from float64 and not for its time
TRAIN_STEP = "train_step"  # the pass of a program that is a whole training step
GREEDY, BEAM = SEARCHES = ("greedy", "beam")  # the passes of a program that translates
ATTENTION = "attention"  # the program that is the mechanism alone
PASS_TITLES = {
    "forward": "forward",
    "forward_backward": "forward + backward",
    DECODE: "decoding a token",
    ACCURACY: "accuracy",
    TRAIN_STEP: "training step",
    GREEDY: "greedy search",
    BEAM: "beam search",
}
SHORT = {
    "too_large": "does not fit",
    "too_slow": "too slow",
    "failed": "failed",
    "killed": "killed",
}
DERIVED = ("analysis_bytes", "memory_bytes", "median_seconds")  # written beside a row's fields


class Axis(NamedTuple):
    """What a line may go over: its name in a table and in a figure."""

    column: str
    title: str


AXES = {
    "length": Axis("n", "length n (tokens)"),
    "num_layers": Axis("layers", "layers n"),
    "batch": Axis("batch", "sequences b"),
    "devices": Axis("devices", "devices d"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One mechanism at one length in one pass.

    Attributes:
      mechanism: name of an attention (`attnlab.mechanisms.attentions`), without its
        implementation; of a training step that of a model.
      length: number of tokens, T = S.
      passes: passes that are measured: "forward", or "forward_backward": the value and the gradient
        of a scalar loss with respect to the parameters and the inputs; "decode": a token by a
        module whose cache is of `length` tokens; "accuracy"; of a model "train_step", or
        "greedy" or "beam": translations of as many tokens as the sources have.
      batch: number of sequences in all, over every device.
      num_heads: number of heads, N; the model width is N * H.
      head_dim: width of one head, H.
      dtype: dtype of parameters and activations.
      causal: whether a token sees only itself and earlier ones.
      implementation: way to compute it, one of its kind's; None = the library's choice.
      ops_only: whether to measure the bare function on [B, T, N, H], without the module and its
        projections.
      parallel: way to use several devices, "jit" or "pmap".
      devices: number of devices that the batch is split over.
      chunk_size: chunk length of LSH, C.
      target: absent accelerator that the case is compiled for, as `targets.parse` takes it, or
        None: the case runs on the devices that are there.
      shard: part that is split over the devices: "batch", "heads", "sequence", of a training also
        "state" or the sizes of its mesh, "data:4,sequence:2"; None = the batch.
      program: program that is measured: "attention", or the model that is trained or that
        translates: "translate", "language_model" or "bert".
      num_layers: number of layers in each stack of that model.
      vocab_size: number of ids of that model.
      beam_size: width of the beam, where there is one.
      against: name of the mechanism that it is timed in turns with; None = alone.
      keep_memory: whether the process keeps what it frees, for its next arrays, as trainings do;
        else as the C library does.
    """

    mechanism: str
    length: int
    passes: str = "forward"
    batch: int = 1
    num_heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"
    causal: bool = True
    implementation: str | None = None
    ops_only: bool = False
    parallel: str = "jit"
    devices: int = 1
    chunk_size: int = 64
    target: str | None = None
    shard: str | None = None
    program: str = ATTENTION
    num_layers: int | None = None
    vocab_size: int | None = None
    beam_size: int | None = None
    against: str | None = None
    keep_memory: bool = False

    @property
    def width(self) -> int:
        """The model width N * H."""
        return self.num_heads * self.head_dim

    @property
    def label(self) -> str:
        """How tables and figures call the mechanism, and how it is typed: `dot:dense`."""
        return f"{self.mechanism}:{self.implementation}" if self.implementation else self.mechanism

    @property
    def model(self) -> Model:
        """The model that the mechanism's name stands for; of attention alone, of one layer."""
        return Model.parse(self.mechanism)

    @property
    def attention(self) -> Attention:
        """The attention, or the first of a pattern.

        Raises:
          Invalid: no attention has that name.
        """
        first = self.model.attentions[0]
        way = self.implementation or first.implementation
        return dataclasses.replace(first, implementation=way)

    @property
    def has_values(self) -> bool:
        """Whether others compute the same numbers: functions do, and translating models."""
        return self.ops_only or self.program == "translate"

    @property
    def is_counted(self) -> bool:
        """Whether its operations are counted where it runs: of JAX, on one device, and timed."""
        of_torch = kind_of(self.attention.kind).written_in == "torch"
        timed = self.passes not in (ACCURACY, DECODE)
        return self.program == ATTENTION and self.devices == 1 and timed and not of_torch

    @property
    def hashes(self) -> bool:
        """Whether a layer hashes."""
        return any(attention.kind == "lsh" for attention in self.model.attentions)

    def __str__(self) -> str:
        where = "" if self.target is None else f"{self.target}: "
        parts = [f"{where}{self.label}", f"n = {self.length}", self.passes]
        if self.num_layers is not None:
            parts.append(f"{self.num_layers} layers")
        if self.beam_size is not None:
            parts.append(f"beam {self.beam_size}")
        if self.devices > 1:
            parts.append(f"batch {self.batch} on {self.devices} devices")
        elif self.batch > 1:
            parts.append(f"batch {self.batch}")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Operations:
    """Numbers of operations.

    Attributes:
      products: floating-point operations of matrix products and convolutions, two for each pair of
        numbers that is multiplied and added.
      functions: exponentials, tanh, divisions and the like by JAX's name, one for each number.
    """

    products: float
    functions: Mapping[str, float]

    def scaled(self, factor: float) -> Operations:
        """These numbers times a factor."""
        functions = {name: factor * number for name, number in self.functions.items()}
        return Operations(factor * self.products, functions)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What one device sends to others.

    Attributes:
      total: number of bytes in all.
      between_hosts: number of bytes of its share of what its host sends to other hosts.
    """

    total: float = 0.0
    between_hosts: float = 0.0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.total + other.total, self.between_hosts + other.between_hosts)

    def __mul__(self, times: float) -> Sent:
        return Sent(self.total * times, self.between_hosts * times)


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a case.

    All sizes are bytes on one device; on CPU, where devices share the memory, the process's total
    divided by the devices.

    Attributes:
      case: case that was measured.
      status: outcome: "ok"; "too_large" (known before running); "too_slow" (stopped, or predicted
        to be); "failed" (an exception); "killed" (its process died).
      message: reason for a status other than "ok", or "".
      compile_seconds: time of tracing, lowering and compiling.
      seconds: times of one call, one for each repetition.
      calls_per_sample: number of calls that each repetition averages over.
      argument_bytes: size of the parameters and inputs, from the compiler.
      output_bytes: size of the outputs, less those that reuse an argument's memory, from the
        compiler.
      temporary_bytes: size of everything in between, from the compiler.
      resident_peak_bytes: size that was seen: the arguments, and how far a run raised the process's
        high-water mark. CPU on Linux only.
      device_peak_bytes: size that was seen: the peak of the device's allocator, where it has one
        and the case raised it.
      refused_bytes: size that a refused case would need, where its program does not say: from the
        compiler that refused it, or from the growth over shorter lengths.
      available_bytes: size of the memory that was free before the case and allowed to it; of a
        target, what a program can use there.
      input_cycled: whether the text was shorter than the case and began again.
      load: load average of the machine over a minute, before or after the case, the larger.
      busy: whether other work ran beside it: that load was a tenth above the number of cores.
      other_seconds: slower median of a case that ran twice because it did not go with its
        neighbors; the row is the faster run.
      operations: operations of one device, or None where they were not counted.
      operations_of: name of what was counted, where it is not the program itself.
      sent: bytes that one device sends to others in one run, or None where they were not counted.
      base_seconds: times of one call of the mechanism that it was timed against; entry i is of the
        same turn as seconds[i].
      error: RMS distance of the context from NumPy's exact attention in float64, of the same
        inputs; None where it was not measured.
    """

    case: Case
    status: str
    message: str = ""
    compile_seconds: float | None = None
    seconds: tuple[float, ...] = ()
    calls_per_sample: int = 1
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None
    resident_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    refused_bytes: int | None = None
    available_bytes: int | None = None
    input_cycled: bool = False
    load: float | None = None
    busy: bool = False
    other_seconds: float | None = None
    operations: Operations | None = None
    operations_of: str = ""
    sent: Sent | None = None
    base_seconds: tuple[float, ...] = ()
    error: float | None = None

    @property
    def ratios(self) -> tuple[float, ...]:
        """Its time / that of the mechanism it was timed against, a number a turn.

        What slows the machine slows both.
        """
        return tuple(a / b for a, b in zip(self.seconds, self.base_seconds, strict=False))

    @property
    def analysis_bytes(self) -> int | None:
        """What the compiled program says it needs, or None where it did not compile."""
        parts = (self.argument_bytes, self.output_bytes, self.temporary_bytes)
        return None if None in parts else sum(part or 0 for part in parts)

    @property
    def memory_bytes(self) -> int | None:
        """The memory to report: what the program says it needs, or was seen to take if more.

        The device allocator's peak is not in it: it rounds up and keeps what it once had.
        """
        if self.refused_bytes is not None:
            return self.refused_bytes
        known = [x for x in (self.analysis_bytes, self.resident_peak_bytes) if x is not None]
        return max(known, default=None)

    @property
    def memory_source(self) -> str:
        """Which of the two numbers `memory_bytes` is: "analysis", "resident" or ""."""
        if self.memory_bytes is None:
            return ""
        return "resident" if self.memory_bytes == self.resident_peak_bytes else "analysis"

    @property
    def sent_bytes(self) -> float | None:
        """What one device sends in one run, or None where it was not counted."""
        return None if self.sent is None else self.sent.total

    @property
    def median_seconds(self) -> float | None:
        """The median over the repetitions, or None where nothing ran."""
        return statistics.median(self.seconds) if self.seconds else None


def passes_of(results: Iterable[Result]) -> list[str]:
    """The passes that occur in the rows, in the order of `PASS_TITLES`."""
    there = {result.case.passes for result in results}
    return [passes for passes in PASS_TITLES if passes in there]


def axis_of(results: Sequence[Result]) -> str:
    """What the lines of these rows go over: depth, devices or batch, else the length."""
    if len({r.case.num_layers for r in results}) > 1:
        return "num_layers"
    here = all(r.case.target is None for r in results)  # a target says how many there are
    if here and len({r.case.devices for r in results}) > 1:
        return "devices"
    lengths = {r.case.length for r in results}
    batches = {r.case.batch for r in results}
    return "batch" if len(lengths) == 1 < len(batches) else "length"


def size_of(result: Result, axis: str) -> int:
    """Where a row stands on an axis."""
    return int(getattr(result.case, axis))
