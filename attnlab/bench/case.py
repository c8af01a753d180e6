"""What is measured and what came out."""

import dataclasses
import statistics

PASSES = ("forward", "forward_backward")
TRAIN_STEP = "train_step"  # the pass of a program that is a whole training step
ATTENTION = "attention"  # the program that is the mechanism alone
PASS_TITLES = {"forward": "forward", "forward_backward": "forward + backward"}
SHORT = {
    "too_large": "does not fit",
    "too_slow": "too slow",
    "failed": "failed",
    "killed": "killed",
}
DERIVED = ("analysis_bytes", "memory_bytes", "median_seconds")  # written beside a row's fields
STATUSES = ("ok", "too_large", "too_slow", "failed", "killed")


@dataclasses.dataclass(frozen=True)
class Case:
    """One mechanism at one length in one pass.

    Attributes:
      mechanism: a name of `attnlab.bench.mechanisms.NAMES`.
      length: tokens T = S.
      passes: "forward", or "forward_backward": the value and the gradient of a scalar loss with
        respect to the parameters and the inputs; "train_step" of a model.
      batch: sequences in all, over every device.
      num_heads: heads N; the model width is N * H.
      head_dim: width H of one head.
      dtype: of parameters and activations.
      causal: whether a token sees only itself and earlier ones.
      implementation: of `ops.attention.IMPLEMENTATIONS`; None for the library's own choice.
      ops_only: the bare function on [B, T, N, H], without the module and its projections.
      parallel: "jit" or "pmap".
      devices: how many devices the batch is split over.
      window: keys that the window mechanism sees on each open side.
      num_hashes: hash rounds R of LSH.
      chunk_size: chunk length C of LSH.
      target: the absent accelerator it is compiled for, as `targets.parse` takes it, or None: it
        is run on the devices that are there.
      shard: what is split over the devices of the target: "batch", "heads", "sequence" or None.
      program: "attention", or the model whose training step it is (`settings.PROGRAMS`).
      num_layers: of that model, in each of its stacks.
      vocab_size: of that model.
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
    window: int = 128
    num_hashes: int = 4
    chunk_size: int = 64
    target: str | None = None
    shard: str | None = None
    program: str = ATTENTION
    num_layers: int | None = None
    vocab_size: int | None = None

    @property
    def width(self) -> int:
        """The model width N * H."""
        return self.num_heads * self.head_dim

    @property
    def label(self) -> str:
        """How tables and figures call the mechanism: `dot`, or `dot (dense)`."""
        return (
            f"{self.mechanism} ({self.implementation})" if self.implementation else self.mechanism
        )

    def __str__(self) -> str:
        where = "" if self.target is None else f"{self.target}: "
        return f"{where}{self.label}, n = {self.length}, {self.passes}"


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a case.

    All sizes are bytes on one device; on CPU, where devices share the memory, the process's total
    divided by the devices.

    Attributes:
      case: what was measured.
      status: "ok"; "too_large" (known before running); "too_slow" (stopped, or predicted to be);
        "failed" (an exception); "killed" (its process died).
      message: why it is not "ok", or "".
      compile_seconds: tracing, lowering and compiling.
      seconds: of one call, one number a repetition.
      calls_per_sample: calls that each repetition averages over.
      argument_bytes: from the compiler: the parameters and inputs.
      output_bytes: from the compiler: the outputs, less those that reuse an argument's memory.
      temporary_bytes: from the compiler: everything in between.
      resident_peak_bytes: seen: arguments plus how far a run raised the process's high-water mark.
        CPU on Linux only.
      device_peak_bytes: seen: the device allocator's peak, where it has one and the case raised it.
      refused_bytes: what it would need, of a case refused before it was known from the program: as
        the compiler says that refused it, or as shorter lengths were seen to grow.
      available_bytes: what was free before the case and allowed to it; of a target, what a program
        can use there.
      input_cycled: whether the text was shorter than the case and began again.
      load: the machine's load average over the minute before the case.
      other_seconds: the slower median, of a case that ran twice because it did not go with its
        neighbors; the row is the faster run.
      turns: when the turns began in which it was timed beside others; "" where it was alone.
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
    other_seconds: float | None = None
    turns: str = ""

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
        if self.refused_bytes is not None or self.analysis_bytes is None:
            return self.refused_bytes
        return max(self.analysis_bytes, self.resident_peak_bytes or 0)

    @property
    def memory_source(self) -> str:
        """Which of the two numbers `memory_bytes` is: "analysis", "resident" or ""."""
        if self.memory_bytes is None:
            return ""
        return "resident" if self.memory_bytes == self.resident_peak_bytes else "analysis"

    @property
    def median_seconds(self) -> float | None:
        """The median over the repetitions, or None where nothing ran."""
        return statistics.median(self.seconds) if self.seconds else None
