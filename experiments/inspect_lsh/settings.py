"""Settings of `inspect_lsh`."""

import dataclasses

from attnlab.mechanisms import own
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag
from experiments.inspect_lsh.beside import parts_of
from experiments.inspect_lsh.quality import CENTERING, MERGE, Line


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `inspect_lsh`; the first of a list is the base."""

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
    num_heads: int = flag(4, "Heads of a layer.", least=1)
    head_dim: int = flag(32, "Width of one head.", least=1)
    input: tuple[str, ...] = flag(
        (), "Files of text. Without them: the project's own sources.", is_path=True
    )

    def __post_init__(self) -> None:
        """Checks each value, and that the model's width is even, for sines and cosines."""
        super().__post_init__()
        for name in self.beside:
            parts_of(name)
        if self.num_heads * self.head_dim % 2:
            raise Invalid(
                f"--num_heads={self.num_heads} --head_dim={self.head_dim}: their product is the"
                " width of sines and cosines, an even number; change one of them"
            )

    def numbers_of_rounds(self) -> list[int]:
        """The numbers of rounds that each line is measured with, rising."""
        return sorted(set(self.rounds))

    def lines(self) -> list[Line]:
        """The base line, then those that differ from it in one thing."""

        def line(
            chunk: int = self.chunk_sizes[0],
            buckets: float = self.bucket_factors[0],
            window: float = self.window_factors[0],
            centering: str = self.centering[0],
            merge: str = self.merge[0],
        ) -> Line:
            num_buckets = default_num_buckets(max(1, round(self.length * buckets)), chunk)
            return Line(chunk, num_buckets, max(1, round(window * chunk)), centering, merge)

        every = [line()]
        every += [line(chunk=chunk) for chunk in self.chunk_sizes[1:]]
        every += [line(buckets=factor) for factor in self.bucket_factors[1:]]
        every += [line(window=factor) for factor in self.window_factors[1:]]
        every += [line(centering=centering) for centering in self.centering[1:]]
        every += [line(merge=merge) for merge in self.merge[1:]]
        return list(dict.fromkeys(every))
