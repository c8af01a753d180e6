"""What every test of training runs under."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Compiles sooner to slower programs, and alike in all runs: some are compared bit for bit."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
