"""Settings of `compare_peers`: comparisons, each as flags of `compare_lengths`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.bench.case import ACCURACY, PASSES, SEARCHES, TRAIN_STEP, Case
from attnlab.runs.flags import Flags, flag
from experiments.compare_lengths.settings import Settings as Lengths

GROWING = ("additive", "dot", "general", "cosine", "concat", "location", "exact", "window-128")
_LSH: Mapping[str, Any] = {
    "mechanisms": ("lsh-4", "hf_lsh-4", "reformer_pytorch-4", "torch_sdpa", "exact:blockwise"),
    "against": "lsh-4",
    "lengths": (16384,),
}
_ACCURACY: Mapping[str, Any] = {
    "mechanisms": ("exact", "torch_sdpa", "jax_nn", "flax"),
    "lengths": (4096, 8192),
    "passes": (ACCURACY,),
}
_TRANSLATION: Mapping[str, Any] = {
    "program": "translate",
    "mechanisms": ("exact", "hf_marian"),
    "against": "exact",
    "num_heads": 4,
    "num_layers": (3,),
    "batch": (50,),
    "vocab_size": 8000,
    "ops_only": False,
}
# Each row is one or several comparisons.
ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "additive": [
        {
            "mechanisms": ("additive", "keras_additive"),
            "against": "additive",
            "lengths": (2048,),
            "num_heads": 1,
            "head_dim": 128,
            "causal": False,
        }
    ],
    "exact": [{"mechanisms": ("exact", "flax", "jax_nn"), "against": "exact", "lengths": (4096,)}],
    "sdpa": [{"mechanisms": ("exact", "torch_sdpa"), "against": "exact", "lengths": (4096, 8192)}],
    "accuracy": [_ACCURACY, {**_ACCURACY, "dtype": "bfloat16"}],
    "growth": [
        {"mechanisms": tuple(f"{name}:blockwise" for name in GROWING), "lengths": (2048, 8192)}
    ],
    "lsh": [_LSH],
    "lsh_kept": [{**_LSH, "keep_memory": True}],
    "lsh_growth": [
        {"mechanisms": (f"lsh-{rounds}",), "lengths": (n // 4, n), "passes": PASSES[1:]}
        for n, rounds in ((65536, 4), (262144, 1))
    ],
    "crossover": [
        {
            "mechanisms": ("lsh-4", "torch_sdpa"),
            "against": "lsh-4",
            "lengths": (512, 1024, 2048, 4096, 8192),
        }
    ],
    "training": [
        {
            "program": "language_model",
            "mechanisms": ("chunked-reversible-lsh-4", "hf_lsh-4"),
            "against": "chunked-reversible-lsh-4",
            "lengths": (4096, 16384),
            "num_heads": 4,
            "num_layers": (4,),
            "vocab_size": 260,
            "passes": (TRAIN_STEP,),
            "ops_only": False,
        }
    ],
    "translation": [
        {**_TRANSLATION, "lengths": (24,), "passes": (TRAIN_STEP,)},
        {**_TRANSLATION, "lengths": (40,), "passes": SEARCHES},
    ],
}


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `compare_peers`."""

    rows: tuple[str, ...] = flag(
        tuple(ROWS), f"Parts of the comparison: {', '.join(ROWS)}.", choices=ROWS
    )
    repeats: int = flag(7, "Number of timed turns of each pair.", least=1)
    seconds: float = flag(
        60.0, "Seconds that each of a pair may run; no turn begins after twice as many.", above=0
    )

    def limits(self) -> Lengths:
        """What a case may take."""
        return Lengths(repeats=self.repeats, case_seconds=self.seconds, case_gib=64.0)

    def parts(self) -> dict[str, list[Case]]:
        """The cases of each row, in the order of the rows."""
        return {
            name: [
                case
                for flags in ROWS[name]
                for case in Lengths(**{"num_heads": 8, "ops_only": True, **flags}).cases(1)
            ]
            for name in self.rows
        }
