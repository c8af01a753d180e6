"""Three steps without dropout over 1, 2 and 4 CPU devices, under jit and pmap; prints JSON.

A process of its own, because the tests' has two devices: JAX_NUM_CPU_DEVICES=4.
"""

import itertools
import json
import warnings

import jax
import numpy as np

from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from attnlab.training.step import TrainState, make_train_step
from tests.training import tiny


def run(kind: str, num_devices: int, accumulate: int = 1) -> list[float]:
    """The loss and gradient norm of each step, then every parameter."""
    parallel = parallel_over(kind, jax.devices()[:num_devices])
    model, optimizer = tiny.Tiny(), OptimizerSettings(learning_rate=0.1).build(3)
    data = list(itertools.islice(tiny.batches(), 3))
    step = parallel.compile(
        make_train_step(
            model,
            TokenCrossEntropy(label_smoothing=0.1),
            optimizer,
            accumulate=accumulate,
            axis_name=parallel.axis_name,
        ),
        donate=True,
    )
    state = parallel.place(TrainState.create(model, optimizer, data[0], seed=0))
    numbers: list[float] = []
    for batch in data:
        # Ends of rows differ, so that devices have different numbers of tokens.
        batch["target"] = np.where(np.tri(8, 6, 3) > 0, batch["target"], 0)
        state, metrics = step(state, parallel.split(batch))
        found = parallel.read(metrics)
        numbers += [float(found.sums["loss"]), float(found.gradient_norm)]
    for leaf in jax.tree.leaves(jax.device_get(parallel.gather(state).params)):
        numbers += np.ravel(leaf).tolist()
    return numbers


if __name__ == "__main__":
    warnings.simplefilter("error")
    cases = [("jit", 1, 1), ("jit", 2, 1), ("jit", 4, 1), ("pmap", 4, 1), ("jit", 2, 4)]
    cases += [("pmap", 2, 2)]
    print(json.dumps({" ".join(map(str, case)): run(*case) for case in cases}))
