"""Settings of `inspect_lsh`: the flags of each part, and those of both."""

import dataclasses
from collections.abc import Collection

from attnlab.bench.case import PASSES, Case
from attnlab.mechanisms import own
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, Flags, flag, seed_flag, written
from experiments.inspect_lsh.beside import parts_of
from experiments.inspect_lsh.quality import CENTERING, MERGE, Line

PARTS = ("quality", "profile")


@dataclasses.dataclass(frozen=True)
class QualityFlags(Flags):
    """The flags of the part quality alone; the first of a list is the base."""

    rounds: tuple[int, ...] = flag((1, 2, 4, 8, 16), "Numbers of hash rounds.", least=1)
    chunk_sizes: tuple[int, ...] = flag((64, 32, 128), "Chunk lengths, in slots.", least=1)
    bucket_factors: tuple[float, ...] = flag(
        (1.0, 0.5, 2.0),
        "Numbers of buckets, as multiples of the usual 2 * length / chunk size.",
        above=0,
    )
    window_factors: tuple[float, ...] = flag(
        (1.0, 0.25, 0.5),
        "Numbers of slots of its own bucket that a query sees, as shares of the chunk size, which "
        "is the most that it can see.",
        above=0,
        most=1,
    )
    centering: tuple[str, ...] = flag(
        CENTERING,
        f"Centers that are subtracted before hashing: {', '.join(CENTERING)}.",
        choices=CENTERING,
    )
    merge: tuple[str, ...] = flag(
        MERGE, f"Ways to count a pair that several rounds show: {', '.join(MERGE)}.", choices=MERGE
    )
    beside: tuple[str, ...] = flag(
        ("window-64", "window-256"),
        f"Other attention, whose pairs are measured on the same activations; {own.FORM}.",
        repeated=True,
    )
    length: int = flag(2048, "Number of bytes to measure on, the last of the text.", least=2)
    num_layers: int = flag(2, "Number of layers of the model; all are measured.", least=1)
    train_steps: int = flag(200, "Number of training steps; 0 leaves the weights random.", least=0)
    top_k: int = flag(16, "Number of keys of largest weight whose recall is measured.", least=1)
    target_mass: float = flag(
        0.9, "Share of the attention mass that counts as enough.", above=0, most=1
    )
    seed: int = seed_flag("Seed of the model, its training and the rotations.")

    def numbers_of_rounds(self) -> list[int]:
        """The numbers of rounds that each line is measured with, rising."""
        return sorted(set(self.rounds))


@dataclasses.dataclass(frozen=True)
class ProfileFlags(Flags):
    """The flags of the part profile alone."""

    lengths: tuple[int, ...] = flag(
        (2048, 4096, 8192, 16384, 32768), "Lengths to profile, in tokens; 4k is 4096.", least=1
    )
    batch: int = flag(1, "Number of sequences.", least=1)
    dtype: str = flag("float32", "Type of the arrays.", choices=DTYPES)
    causal: bool = flag(True, "Whether a token sees only itself and earlier ones.")
    passes: tuple[str, ...] = flag(PASSES, f"Passes: {', '.join(PASSES)}.", choices=PASSES)
    num_hashes: int = flag(4, "Hash rounds.", least=1)
    chunk_size: int = flag(64, "Chunk length, in slots of sorted order.", least=1)
    num_buckets: int | None = flag(
        None,
        "Number of buckets of a round, 1 or an even number. Without it: the library's own choice "
        "for each length, about 2 * length / chunk_size.",
    )
    repeats: int = flag(5, "Number of timed calls, and of calls under the profiler.", least=1)


@dataclasses.dataclass(frozen=True)
class Settings(ProfileFlags, QualityFlags):
    """The flags of `inspect_lsh`."""

    parts: tuple[str, ...] = flag(PARTS, f"Parts to do: {', '.join(PARTS)}.", choices=PARTS)
    num_heads: int | None = flag(
        None, "Heads of a layer. Without it: 4 in the part quality, 8 in profile.", least=1
    )
    head_dim: int | None = flag(
        None, "Width of one head. Without it: 32 in the part quality, 64 in profile.", least=1
    )
    input: tuple[str, ...] = flag(
        (), "Files of text. Without them: the project's own sources.", is_path=True
    )

    def __post_init__(self) -> None:
        """Checks each value, and that the model's width is even, for sines and cosines."""
        super().__post_init__()
        for name in self.beside:
            parts_of(name)
        heads, width = self.model_heads
        if heads * width % 2:
            raise Invalid(
                f"--num_heads={heads} --head_dim={width}: their product is the"
                " width of sines and cosines, an even number; change one of them"
            )

    def check_named(self, named: Collection[str]) -> None:
        """Refuses the flags of a part that is not done."""
        for part, of_part in zip(PARTS, (QualityFlags, ProfileFlags), strict=True):
            alone = sorted({field.name for field in dataclasses.fields(of_part)} & {*named})
            if alone and part not in self.parts:
                value = written(getattr(self, alone[0]))
                raise Invalid(f"--{alone[0]}={value}: needs {part} in --parts")

    @property
    def model_heads(self) -> tuple[int, int]:
        """The number of heads of the model, and their width."""
        return self.num_heads or 4, self.head_dim or 32

    def lines(self) -> list[Line]:
        """The base line, then those that differ from it in one thing; none without their part."""

        def line(
            chunk: int = self.chunk_sizes[0],
            buckets: float = self.bucket_factors[0],
            window: float = self.window_factors[0],
            centering: str = self.centering[0],
            merge: str = self.merge[0],
        ) -> Line:
            num_buckets = default_num_buckets(max(1, round(self.length * buckets)), chunk)
            return Line(chunk, num_buckets, max(1, round(window * chunk)), centering, merge)

        if "quality" not in self.parts:
            return []
        every = [line()]
        every += [line(chunk=chunk) for chunk in self.chunk_sizes[1:]]
        every += [line(buckets=factor) for factor in self.bucket_factors[1:]]
        every += [line(window=factor) for factor in self.window_factors[1:]]
        every += [line(centering=centering) for centering in self.centering[1:]]
        every += [line(merge=merge) for merge in self.merge[1:]]
        return list(dict.fromkeys(every))

    def of_quality(self) -> list[Line | str]:
        """What the part quality measures: the lines, then the names of other attention."""
        lines = self.lines()
        return [*lines, *dict.fromkeys(self.beside)] if lines else []

    def cases(self) -> list[Case]:
        """Every case to profile, length by length; none without their part."""
        if "profile" not in self.parts:
            return []
        names = ("batch", "dtype", "causal", "chunk_size")
        sizes = {name: getattr(self, name) for name in names}
        sizes |= {"num_heads": self.num_heads or 8, "head_dim": self.head_dim or 64}
        return [
            Case(f"lsh-{self.num_hashes}", length, passes, ops_only=True, **sizes)
            for length in sorted(set(self.lengths))
            for passes in dict.fromkeys(self.passes)
        ]
