"""Exact attention, blockwise, never needs O(T·S) memory, whatever the score: as compiled.

XLA:CPU can fuse a whole attention so that its `memory_analysis()` reports no temporaries, for
quadratic code too; a flag that is read once a process turns that off, hence the process of its own.
"""

import json
import os

import pytest

from tests.several import run_python

LENGTHS = (16384, 65536)
# 4× the length; a little is left for what does not grow.
LARGEST_GROWTH = 4.4


def measure(name: str, num_tokens: int) -> int:
    """Bytes of the compiled forward and backward: arguments + outputs + temporaries."""
    import jax
    import jax.numpy as jnp

    from attnlab.testing import Sizes
    from tests.mechanism_cases import BY_NAME

    mechanism = BY_NAME[name]
    sizes = Sizes(1, num_tokens, num_tokens, 1, 1, 16, 16, 16)
    arrays = {
        name: jax.ShapeDtypeStruct(x.shape, jnp.float32)
        for name, x in mechanism.arrays(sizes=sizes).items()
    }

    def context_and_gradients(arrays):
        context, pull_back = jax.vjp(lambda arrays: mechanism.apply(arrays, None), arrays)
        return context, pull_back(jnp.ones_like(context))

    found = jax.jit(context_and_gradients).lower(arrays).compile().memory_analysis()
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


@pytest.fixture(scope="module")
def growth():
    """{mechanism: memory at 4× the length / memory}, all measured in one process."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_experimental_ynn_fusion_type="
    # What LLVM optimizes comes after XLA has laid out the memory.
    settings = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    environment = os.environ | {"XLA_FLAGS": flags} | settings
    printed = run_python("-m", "tests.test_memory", env=environment)
    return json.loads(printed.splitlines()[-1])


def linear_and_quadratic() -> tuple[list[str], list[str]]:
    from tests.mechanism_cases import MECHANISMS

    # What `Score.prepare` leaves of the other scores is one of these, and O(T + S) itself.
    same = ("scaled_dot", "general", "cosine", "normalized_additive", "concat")
    names = [m.name for m in MECHANISMS if not m.name.startswith(same)]
    linear = [name for name in names if not name.endswith("-dense")]
    return linear, ["scaled_dot-dense", "additive-dense"]


@pytest.mark.slow
@pytest.mark.parametrize("name", linear_and_quadratic()[0])
def test_memory_is_linear(growth, name):
    assert 1 < growth[name] <= LARGEST_GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("name", linear_and_quadratic()[1])
def test_the_same_measure_sees_the_square(growth, name):
    assert growth[name] > 3 * LARGEST_GROWTH


if __name__ == "__main__":
    from concurrent.futures import ThreadPoolExecutor

    names = sum(linear_and_quadratic(), [])
    with ThreadPoolExecutor(2) as pool:  # compiling leaves Python to others
        sizes = {(name, n): pool.submit(measure, name, n) for name in names for n in LENGTHS}
        short, long = ({name: sizes[name, n].result() for name in names} for n in LENGTHS)
    print(json.dumps({name: long[name] / short[name] for name in names}))
