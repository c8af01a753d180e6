"""Short trainings over two or four devices, of one process or of several; writes JSON.

python -m tests.training.processes_script OUT --distributed=… --coordinator=… …
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.runs import clusters, processes
from attnlab.training.loop import LoopSettings, Task, train
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from tests.training import tiny

CONFIG = TransformerConfig(
    tiny.VOCAB, num_layers=1, width=8, hidden=12, num_heads=4, dropout_rate=0.2
)
# Name → (kind, mesh, rows of text, none where it is no language model). A mesh need not divide the
# rows of one process: three are half of six.
OF_TWO = {
    "batch": ("jit", None, 0),
    "state": ("jit", {"data": 2}, 6),
    "positions": ("jit", {"sequence": 2}, 8),
    "pmap": ("pmap", None, 0),
}
OF_FOUR = {
    "batch": ("jit", None, 0),
    "state": ("jit", {"data": 2, "model": 2}, 8),
    "positions": ("jit", {"data": 2, "sequence": 2}, 8),
}


def trained(kind, mesh, rows, folder: Path, devices=None):
    """The curve without its times, and the parameters."""
    parallel = parallel_over(kind, devices or jax.devices(), mesh)

    def mine(batch):
        if rows:
            batch = {"tokens": np.pad(batch["target"][:rows], ((0, 0), (0, 2)))}
        return parallel.part.of(batch)

    task = Task(
        TransformerLM(CONFIG) if rows else tiny.Tiny(dropout_rate=0.2, width=8),
        TokenCrossEntropy(),
        tiny.batches().map(mine),
        lambda: map(mine, tiny.validation()),
        {},
    )
    if processes.is_first():
        folder.mkdir(parents=True)
    processes.barrier()
    found = train(
        task,
        settings=LoopSettings(steps=6, log_every=2, validate_every=3, checkpoint_every=3),
        optimizer=OptimizerSettings(learning_rate=0.01, clip_norm=1.0),
        parallel=parallel,
        folder=folder,
        say=lambda line: None,
    )
    processes.barrier()
    numbers = [x for leaf in jax.tree.leaves(found.params) for x in np.ravel(leaf).tolist()]
    return {"rows": tiny.curve_of(folder), "numbers": numbers}


def main(out: Path, coordinator: str, count: int, index: int) -> None:
    processes.join(clusters.Cluster("a test", coordinator, count, index))
    cases = OF_TWO if jax.device_count() == 2 else OF_FOUR
    found = {name: trained(*case, out.parent / f"{name}-{count}") for name, case in cases.items()}
    every = processes.gather(found)
    assert all(one == found for one in every), "a process has other numbers"
    if processes.is_first():
        out.write_text(json.dumps(found))
    processes.leave(0)


if __name__ == "__main__":
    flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[2:])
    main(
        Path(sys.argv[1]),
        flags["coordinator"],
        int(flags["num_processes"]),
        int(flags["process_id"]),
    )
