"""What every test of an experiment runs under."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Compiles sooner to slower programs, also where a test starts a process.

    What an experiment computes is tested, not how it rounds or how fast it is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
