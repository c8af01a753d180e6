"""Settings of `compare_lengths`, checked before anything starts."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from attnlab.bench import inputs, sharding, targets, topology
from attnlab.bench.case import ACCURACY, ATTENTION, BEAM, DECODE, PASSES, SEARCHES, TRAIN_STEP, Case
from attnlab.bench.roofline import UNITS, Unit
from attnlab.bench.targets import Target
from attnlab.core.tokens import NUM_SPECIAL
from attnlab.masks import Causal
from attnlab.mechanisms.attentions import (
    EXACT_IMPLEMENTATIONS,
    KINDS,
    Model,
    grammar,
    in_models,
    kind_of,
    require_attention,
    require_model,
    split_way,
)
from attnlab.mechanisms.own import Own, is_own, load
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, Flags, flag, format_value
from attnlab.training.parallel import PARALLEL, mesh_sizes

AUTO = "auto"
PLAIN = ("exact", "additive", "window-128", "lsh-4")
# The same as in `model_programs`, whose import takes seconds, too long for --help.
PROGRAMS = (ATTENTION, "translate", "language_model", "bert")
OF_MODELS = " or ".join(f"program={name}" for name in PROGRAMS[1:])
FOR_TARGETS: dict[str, Any] = {"lengths": (1024, 4096, 16384, 65536, 262144)}
FOR_PROGRAMS: dict[str, Any] = {
    "lengths": (1024, 4096, 16384),
    "mechanisms": ("exact", "window-128", "lsh-4"),
    "passes": (TRAIN_STEP,),
}
FOR_ONE_LENGTH: dict[str, Any] = {"lengths": (4096,)}  # over devices, or over batches
FOR_WAYS: dict[str, Any] = {"mechanisms": PLAIN}  # --implementation says how to compute each
_WAYS = (AUTO, *EXACT_IMPLEMENTATIONS)
_PEERS = {"language_model": "hf_lsh", "translate": "hf_marian"}  # whole models of other people


def peers_of(mechanisms: Sequence[str], written_in: Sequence[str] = ("jax", "torch")) -> list[str]:
    """Those mechanisms that are other people's; what has no valid name is none."""
    kinds = {name: KINDS.get(name.partition(":")[0].partition("-")[0]) for name in mechanisms}
    return [name for name, kind in kinds.items() if kind and kind.written_in in written_in]


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `compare_lengths`.

    A mechanism is written "additive", with one line in the figures for each `implementation`, or
    "additive:dense", which is one line.
    """

    lengths: tuple[int, ...] = flag(
        (512, 1024, 2048, 4096, 8192),
        "Sequence lengths, in tokens; 4k is 4096, 1m is 1024k.",
        least=1,
    )
    num_heads: int = flag(4, "Heads; the model width is num_heads * head_dim.", least=1)
    head_dim: int = flag(64, "Width of one head.", least=1)
    dtype: str = flag("float32", "Type of parameters and activations.", choices=DTYPES)
    causal: bool = flag(
        True, "Whether a token sees only itself and earlier ones.", needs=f"program={ATTENTION}"
    )
    passes: tuple[str, ...] = flag(
        PASSES,
        f"Passes: {', '.join(PASSES)}; {DECODE} is one more token, by a module with a cache of as "
        f"many; {ACCURACY} is the forward pass without times, for its RMS distance from exact "
        f"attention by NumPy in float64. Of a --program: {TRAIN_STEP}, and of translate here "
        f"{' and '.join(SEARCHES)} search for translations as long as their sources.",
        choices=(*PASSES, DECODE, ACCURACY, TRAIN_STEP, *SEARCHES),
    )
    chunk_size: int = flag(64, "Chunk length of lsh, in slots of sorted order.", least=1)
    repeats: int = flag(5, "Timed samples of each case.", least=1, not_with="target")
    input: str | None = flag(
        None,
        "A file whose bytes are the input. Without it: the project's own sources.",
        is_path=True,
        not_with="target",
    )
    mechanisms: tuple[str, ...] = flag(
        ("exact", "exact:dense", "additive", "additive:dense", "window-128", "lsh-4"),
        f"Mechanisms to compare: {grammar()}.",
    )
    batch: tuple[int, ...] = flag(
        (1,),
        "Sequences in all; must divide over the devices. With --target it may be several, at one "
        "length: memory is then shown over the batch.",
        least=1,
    )
    implementation: tuple[str, ...] = flag(
        (AUTO,),
        "Ways to compute exact attention, a line in the figures for each: auto (the fastest exact "
        f"way here), {', '.join(_WAYS[1:])}. A mechanism without any of them has its own way. "
        f"Without --mechanisms: {format_value(PLAIN)}.",
        choices=_WAYS,
    )
    ops_only: bool = flag(
        False,
        "Whether to compare the bare functions, without modules; so are other people's always.",
        needs=f"program={ATTENTION}",
    )
    against: str | None = flag(
        None,
        "One of --mechanisms, with which each other one is timed in turns, and whose time and "
        "memory theirs are divided by.",
        not_with="target",
    )
    parallel: str = flag(
        "jit",
        "How the batch is split over devices of this machine.",
        choices=PARALLEL,
        needs=f"program={ATTENTION}",
        not_with="target",
    )
    devices: tuple[int, ...] = flag(
        (),
        "Numbers of devices to split the cases over; with several, time is shown over devices, at "
        "one length, for the same work and for as much work a device. Without it: all local ones "
        "for pmap, one for jit. On a CPU as many as asked for are made.",
        least=1,
        needs=f"program={ATTENTION}",
        not_with="target",
    )
    case_seconds: float = flag(
        10.0, "Seconds after which a case is stopped.", above=0, not_with="target"
    )
    keep_memory: bool = flag(
        False,
        "Whether the processes keep what they free for their next arrays, as trainings do. The C "
        "library gives large arrays back to the system, which clears the pages of the next ones.",
        not_with="target",
    )
    case_gib: float = flag(
        8.0,
        "GiB of a CPU's memory that a case may take: one that needs more is not run. What torch "
        "needs is not known before. On an accelerator: all of its memory.",
        above=0,
        not_with="target",
    )
    target: tuple[str, ...] = flag(
        (),
        "Accelerators to compile for, which need not be here: "
        f"{', '.join(targets.known_devices())}; "
        "slices such as v5e:4x4 or v5e-16. Without --lengths: "
        f"{format_value(FOR_TARGETS['lengths'])}.",
    )
    shard: str | None = flag(
        None,
        "What is split over several devices, of a slice or of this machine: heads, sequence or, as "
        "without it, batch; of a training also state, the batch and the parameters with it, or a "
        "mesh, as trainings' --mesh has it: data:4,sequence:2.",
    )
    program: str = flag(
        ATTENTION,
        "What is measured: attention, or a model, in training or translating, whose "
        f"self-attention is {', '.join(in_models())} or a pattern, such as window-128+exact; a "
        "language model's name may begin with chunked-, reversible- or both. Without --lengths: "
        f"{format_value(FOR_PROGRAMS['lengths'])}; without --mechanisms: "
        f"{format_value(FOR_PROGRAMS['mechanisms'])}.",
        choices=PROGRAMS,
    )
    num_layers: tuple[int, ...] = flag(
        (6,),
        "Numbers of layers in each stack of the model of --program; with several, memory is shown "
        "over depth, at one length.",
        least=1,
        needs=OF_MODELS,
    )
    vocab_size: int = flag(
        32000, "Size of the vocabulary of the model of --program.", least=1, needs=OF_MODELS
    )
    beam_size: int = flag(
        5, f"Width of the beam of --passes={BEAM}.", least=1, needs=f"passes={BEAM}"
    )

    def __post_init__(self) -> None:
        """Checks what can be checked without a device.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        super().__post_init__()
        self._check_mechanisms()
        self._check_passes()
        self._check_peers()
        self._check_shard()
        self._check_axis()
        for said, count in self._counts().items():
            self._divide(count, said)

    def require_files(self, typed: Mapping[str, Any]) -> None:
        """Refuses a text that cannot be read."""
        super().require_files(typed)
        inputs.read(self.input)

    def require_installed(self) -> None:
        """Refuses targets whose compiler is not installed."""
        for target in self.targets():
            topology.require_compiler(target)

    @classmethod
    def implied(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        implied: dict[str, Any] = {}
        for name, defaults in (
            ("target", FOR_TARGETS),
            ("implementation", FOR_WAYS),
            ("program", FOR_PROGRAMS),
        ):
            implied |= defaults if name in named else {}
        if named.get("program", ATTENTION) == ATTENTION and peers_of(named.get("mechanisms", ())):
            implied["ops_only"] = True
        several = any(len(named.get(name, ())) > 1 for name in ("devices", "batch"))
        return implied | (FOR_ONE_LENGTH if several else {})

    def cases(self, local_devices: int) -> list[Case]:
        """Every case, length by length: however early a run ends, it compares all mechanisms.

        Raises:
          Invalid: the batch does not divide over the devices, or there are too few of them.
        """
        if self.target:
            return self._cases_of_targets()
        if self.program != ATTENTION:
            sizes = {"num_layers": self.num_layers[0], "batch": self.batch[0]}
            return self._cases(
                self.passes, program=self.program, vocab_size=self.vocab_size, **sizes
            )
        counts = sorted(set(self.devices))
        if counts and counts[-1] > local_devices:
            raise Invalid(f"--devices={counts[-1]}: this machine has {local_devices}; give fewer")
        counts = counts or [local_devices if self.parallel == "pmap" else 1]
        cases = []
        for count in counts:
            self._divide(count, f"{count} devices")
            # As much work a device as the fewest have.
            for batch in dict.fromkeys((self.batch[0], self.batch[0] * count // counts[0])):
                options: dict[str, Any] = {"devices": count, "shard": self.shard, "batch": batch}
                cases += self._cases(self.passes, **options)
        return cases

    def units(self, cases: Sequence[Case]) -> list[Unit]:
        """What of the machine the peak of is measured: nothing where no operations are counted."""
        several = any(case.devices > 1 for case in cases)
        if self.target or several or not any(case.is_counted for case in cases):
            return []
        return [Unit(name, self.dtype) for name in UNITS]

    def targets(self) -> list[Target]:
        """The accelerators to compile for, each once; empty = measure on this machine."""
        return list(dict.fromkeys(map(targets.parse, self.target)))

    def _cases_of_targets(self) -> list[Case]:
        cases = []
        for target in self.targets():
            options: dict[str, Any] = {"target": target.name, "shard": self.shard}
            if self.program != ATTENTION:
                options |= {"program": self.program, "vocab_size": self.vocab_size}
            for depth, batch in itertools.product(self._depths(), sorted(set(self.batch))):
                sizes = {"devices": target.devices, "num_layers": depth, "batch": batch}
                cases += self._cases(self.passes, **sizes, **options)
        return cases

    def _depths(self) -> list[int | None]:
        if self.program == ATTENTION:
            return [None]
        return [*dict.fromkeys(self.num_layers)]

    def _cases(self, passes: tuple[str, ...], **options: Any) -> list[Case]:
        names = "num_heads head_dim dtype causal chunk_size ops_only parallel keep_memory".split()
        options |= {name: getattr(self, name) for name in names}

        def options_of(name: str, way: str | None, one: str) -> dict[str, Any]:
            beam = {"beam_size": self.beam_size} if one == BEAM else {}
            return {"implementation": way, "against": self._base(name, way, one), **beam}

        return [
            Case(name, length, one, **options_of(name, way, one), **options)
            for length in sorted(set(self.lengths))
            for name, way in self._lines()
            for one in dict.fromkeys(passes)
        ]

    def _base(self, name: str, way: str | None, passes: str) -> str | None:
        """What a mechanism is timed against."""
        alone = passes == ACCURACY or self.against == (f"{name}:{way}" if way else name)
        return None if alone else self.against

    def unmet_needs(self) -> Mapping[str, str]:
        unmet: dict[str, str] = {}
        every = (x for line in self.mechanisms for x in Model.parse(line).attentions)
        if not any(kind_of(x.kind).counts == KINDS["lsh"].counts for x in every):
            unmet["chunk_size"] = "lsh among --mechanisms"
        if max(self._counts().values(), default=1) == 1:
            unmet["shard"] = "several devices, of --devices=2 or of --target=v5e:2x4"
        if len(self._lines()) == 1:
            unmet["against"] = "a second one of --mechanisms"
        if set(self.passes) == {ACCURACY}:
            timed = f"a pass other than {ACCURACY}, which has no times"
            unmet |= {"repeats": timed, "against": timed}
        ways = {way or AUTO for _, way in self._lines()}
        others = [way for way in self.implementation if way not in ways]
        if others:
            unmet["implementation"] = f"a mechanism that is computed by {', '.join(others)}"
        return unmet

    def _check_axis(self) -> None:
        """A run goes over one thing: its tables and figures have one axis."""
        axes = {name: getattr(self, name) for name in ("lengths", "devices", "num_layers", "batch")}
        several = {name: sizes for name, sizes in axes.items() if len(set(sizes)) > 1}
        if len(several) > 1:
            given = " ".join(f"--{name}={format_value(sizes)}" for name, sizes in several.items())
            raise Invalid(
                f"{given}: a run goes over lengths, devices, depth or batches; give several of one"
            )
        for name in ("batch", "num_layers"):
            if name in several and not self.target:
                raise Invalid(f"--{name}={format_value(axes[name])}: only with --target; give one")

    def _counts(self) -> dict[str, int]:
        """The numbers of devices that a case may be split over, by what they are called."""
        if self.target:
            slices = {f"the {one.devices} devices of {one.name}": one for one in self.targets()}
            return {said: one.devices for said, one in slices.items()}
        return {f"{count} devices": count for count in self.devices}

    def _check_shard(self) -> None:
        """Refuses a split that the program or `pmap` has not."""
        if self.shard is None:
            return
        if self.parallel == "pmap":
            raise Invalid("--parallel=pmap splits the batch; leave --shard out")
        names = sharding.SHARDS if self.program == ATTENTION else tuple(sharding.OF_TRAININGS)
        if self.shard in names:
            return
        if self.program == ATTENTION:
            raise Invalid(
                f"--shard={self.shard}: give {', '.join(names)}; only a training, of a --program, "
                "has a state or a mesh"
            )
        try:
            mesh_sizes(self.shard)
        except ValueError as error:
            raise Invalid(f"--shard={self.shard}: {error}; or {', '.join(names)}") from None

    def _check_mechanisms(self) -> None:
        given = f"--mechanisms={format_value(self.mechanisms)}"
        for line in self.mechanisms:
            if (peer := _PEERS.get(self.program)) and line.startswith(peer):
                require_attention(given, line, kinds=(peer,))
            elif self.program == ATTENTION:
                require_attention(given, line, kinds=[x for x in KINDS if x != "hf_marian"])
            elif self.program == "language_model":
                require_model(given, line, min(self.num_layers))
            else:
                require_attention(given, line, min(self.num_layers))
            for attention in filter(lambda x: is_own(x.kind), Model.parse(line).attentions):
                self._check_own(load(attention.kind))

    def _check_own(self, mine: Own) -> None:
        if self.ops_only and mine.kind == "module":
            raise Invalid(f"--ops_only: {mine.name} is a module; leave one of the two out")
        width, dtype = self.num_heads * self.head_dim, jnp.dtype(self.dtype)
        layer = MultiHeadAttention(self.num_heads, out_features=width, dtype=dtype)
        mine.require_fits(layer, min(self.lengths), Causal if self.causal else lambda: None)

    def _check_passes(self) -> None:
        """Refuses passes and sizes that the program has not."""
        if self.program == "bert" and not self.target:
            raise Invalid("--program=bert needs --target, such as --target=v5e:2x4")
        valid: tuple[str, ...] = (*PASSES, DECODE, ACCURACY)
        if self.program != ATTENTION:
            here = self.program == "translate" and not self.target
            valid = (TRAIN_STEP, *SEARCHES) if here else (TRAIN_STEP,)
        if wrong := [one for one in self.passes if one not in valid]:
            where = " with --target" if self.target else ""
            raise Invalid(
                f"--passes={format_value(wrong)}: --program={self.program}{where} has "
                f"{', '.join(valid)}"
            )
        least = NUM_SPECIAL + 256
        if self.program != ATTENTION and not self.target and self.vocab_size < least:
            raise Invalid(
                f"--vocab_size={self.vocab_size}: what runs here reads bytes and {NUM_SPECIAL} "
                f"special ids; give {least} at least"
            )

    def _check_peers(self) -> None:
        """Checks what is compared with other people's attention, and against what."""
        peers = peers_of(self.mechanisms)
        listed = ", ".join(peers)
        if peers and self.program == ATTENTION and not self.ops_only:
            raise Invalid(f"--noops_only: {listed} have no projections; leave it out")
        split = max(self.devices, default=1) > 1 or self.parallel != "jit"
        if peers and self.program != ATTENTION and self.dtype != "float32":
            raise Invalid(f"--dtype={self.dtype}: {listed} compute in float32; leave it out")
        # Those of torch have all cores, as all devices of a CPU have together.
        parts = self.parallel != "jit" or len(set(self.devices)) > 1
        alone = peers if parts else peers_of(self.mechanisms, ("jax",))
        if peers and self.target or alone and split:
            drop = "--target" if self.target else "--devices, --parallel"
            raise Invalid(f"--mechanisms={listed}: on one device that is here; drop {drop}")
        if ACCURACY in self.passes and (self.target or split or not self.ops_only):
            raise Invalid(
                f"--passes={ACCURACY}: of bare functions on one device that is here; give "
                "--ops_only, without --target, --devices and --parallel"
            )
        if ACCURACY in self.passes and (others := self._others_than_exact()):
            raise Invalid(
                f"--passes={ACCURACY}: its distance is from scaled dot product attention; leave "
                f"other functions out: {', '.join(others)}"
            )
        several = split or any(count > 1 for count in self._counts().values())
        if DECODE in self.passes and (peers or self.ops_only or not self.causal or several):
            raise Invalid(
                f"--passes={DECODE}: of causal modules with a cache, on one device; leave out "
                "--ops_only, --nocausal, several devices and what others made"
            )
        if self.against is None:
            return
        labels = [f"{name}:{way}" if way else name for name, way in self._lines()]
        if self.against not in labels:
            raise Invalid(
                f"--against={self.against}: not among --mechanisms; give {', '.join(labels)}"
            )
        if parts:
            raise Invalid(
                f"--against={self.against}: times are by jit and of one number of devices; drop it"
            )

    def _others_than_exact(self) -> list[str]:
        """The mechanisms that neither compute exact attention, nor leave out some of its pairs."""
        like_exact = {"exact", "window"}
        kinds = {name: Model.parse(name).attentions[0].kind for name, _ in self._lines()}
        same = {x for x in kinds.values() if is_own(x) or (kind_of(x).computes or x) in like_exact}
        return [name for name, kind in kinds.items() if kind not in same]

    def _lines(self) -> list[tuple[str, str | None]]:
        """The pairs of a mechanism and an implementation, each once."""
        lines: list[tuple[str, str | None]] = []
        for line in self.mechanisms:
            name, way = split_way(line)
            valid = {
                w for x in Model.parse(line).attentions for w in kind_of(x.kind).implementations
            }
            ways = [way] if way else [w for w in self.implementation if w in (AUTO, *valid)]
            lines += [(name, None if way == AUTO else way) for way in ways or [AUTO]]
        return list(dict.fromkeys(lines))

    def _divide(self, devices: int, said: str) -> None:
        """Refuses sizes that the devices do not divide."""
        mesh = sharding.mesh_of(self.shard, devices)
        if (product := math.prod(mesh.values())) != devices:
            raise Invalid(
                f"--shard={self.shard} is for {product} devices, not for {said}; give sizes whose "
                f"product is {devices}"
            )
        for axis, number in mesh.items():
            name = {"data": "batch", "model": "num_heads", "sequence": "lengths"}[axis]
            sizes = getattr(self, name)
            among = said if number == devices else f"{number} of {said}"
            for size in sizes if isinstance(sizes, tuple) else (sizes,):
                if size % number:
                    raise Invalid(
                        f"--{name}={size} does not divide over {among}; give a multiple of "
                        f"{number}, such as --{name}={number}"
                    )
