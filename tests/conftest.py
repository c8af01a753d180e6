"""What every test runs under. Warnings are errors too: `filterwarnings` in pyproject.toml."""

import os
import signal
from collections.abc import Iterator

# The CPU unless the caller names another platform: test workers cannot share an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

# A job in the background of a shell ignores Ctrl-C, and so would programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_num_cpu_devices", 2)  # so that nothing assumes there is one
jax.config.update("jax_numpy_rank_promotion", "raise")  # broadcasting across ranks is spelt out

hypothesis.settings.register_profile("attnlab", deadline=None)  # machines are shared
hypothesis.settings.load_profile("attnlab")


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test with 64-bit types allowed."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def quick_compile() -> Iterator[None]:
    """Compiles sooner to slower programs: for tests of what is computed, not of how it rounds."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
