"""What a user asks of `host_speed`."""

import dataclasses
from collections.abc import Collection

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, written

POOL = 20  # batches whose pairs are sorted by length together, as in a training


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `host_speed`."""

    data_files: tuple[str, ...] = flag(
        (), "Text to encode: SOURCE,TARGET with aligned lines, or one TSV; .gz too.", is_path=True
    )
    vocab_size: int = flag(8000, "Pieces of the joint vocabulary of --data_files.", least=1)
    num_workers: tuple[int, ...] = flag(
        (0, 1, 2), "Numbers of processes that read and encode; 0 is a thread.", least=0
    )
    batch_size: int = flag(128, "Pairs of a batch.", least=1)
    pairs: int = flag(20_000, "Pairs to encode, each once.", least=1)
    mib: tuple[int, ...] = flag((256, 1024), "Sizes of checkpoints, in MiB.", least=1)
    repeats: int = flag(3, "Number of times that each checkpoint is written and read.", least=1)
    cache_dir: str | None = flag(
        None, "Folder of prepared data. Without it: attnlab's in the user's cache folder."
    )

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
          Invalid: a value is not valid; the message begins with the flag.
        """
        super().__post_init__()
        if len(self.data_files) > 2:
            raise Invalid(
                f"--data_files={written(self.data_files)}: give the source and the target file, or "
                "one TSV"
            )
        if self.pools < 1:
            raise Invalid(
                f"--pairs={self.pairs} is too small; give at least {2 * POOL * self.batch_size}, "
                f"two pools of {POOL} batches, or a smaller --batch_size"
            )

    def check_named(self, named: Collection[str]) -> None:
        for name in ("vocab_size", "cache_dir"):
            if name in named and not self.data_files:
                raise Invalid(f"--{name} counts for nothing without --data_files; leave it out")

    @property
    def pools(self) -> int:
        """Pools of batches that are timed, behind the first."""
        return self.pairs // (POOL * self.batch_size) - 1
