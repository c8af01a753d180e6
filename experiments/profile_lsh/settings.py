"""What a user asks of `profile_lsh`."""

import dataclasses

from attnlab.bench.case import Case
from attnlab.bench.case_flags import CaseFlags
from attnlab.runs.flags import flag


@dataclasses.dataclass(frozen=True)
class Settings(CaseFlags):
    """The flags of `profile_lsh`."""

    lengths: tuple[int, ...] = flag(
        (2048, 4096, 8192, 16384, 32768), "Sequence lengths, in tokens; 4k is 4096.", least=1
    )
    batch: int = flag(1, "Number of sequences.", least=1)
    num_heads: int = flag(8, "Number of heads.", least=1)
    num_hashes: int = flag(4, "Hash rounds.", least=1)
    repeats: int = flag(5, "Number of timed calls, and of calls under the profiler.", least=1)
    num_buckets: int | None = flag(
        None,
        "Number of buckets of a round, 1 or an even number. Without it: the library's own choice "
        "for each length, about 2 * length / chunk_size.",
    )

    def cases(self) -> list[Case]:
        """Every case, length by length."""
        return [
            self.case(f"lsh-{self.num_hashes}", length, passes, batch=self.batch, ops_only=True)
            for length in sorted(set(self.lengths))
            for passes in dict.fromkeys(self.passes)
        ]
