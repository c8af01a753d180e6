"""What every test runs under.

Warnings are errors too: `filterwarnings` in pyproject.toml.
"""

import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# The CPU unless the caller names another platform: test workers cannot share an accelerator.
# tests/device, whose worker has it alone, asks for what was given.
os.environ.setdefault("GIVEN_JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", ""))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A second run compiles nothing that has not changed; programs that tests start use it as well.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import pytest

# A job in the background of a shell ignores Ctrl-C, and so would programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs of tests are too small to be worth compiling in 32 parts. Programs that tests start
# inherit these flags.
told = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    # Half of the time to compile is that of these emitters. Later releases of JAX have no other
    # ones, so the suite on a newer JAX runs what users run.
    told += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = told.strip()

# A tenth of the time went into looking for garbage among JAX's traces, which stay.
gc.set_threshold(50_000, 20, 100)

# What is computed is tested, and not how it rounds or how fast it is: programs of a third of the
# time to compile. Those of processes that tests start are as users compile them.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_num_cpu_devices", 2)  # so that nothing assumes there is one
jax.config.update("jax_numpy_rank_promotion", "raise")  # broadcasting across ranks is spelt out

collect_ignore = ["device"]  # which is for an accelerator, and named on the command line

if importlib.util.find_spec("hypothesis"):  # tests/device does without
    import hypothesis

    hypothesis.settings.register_profile("attnlab", deadline=None)  # machines are shared
    hypothesis.settings.load_profile("attnlab")


def pytest_collection_finish() -> None:
    """Leaves what is imported to the end of the process: it is no garbage."""
    gc.freeze()


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test with 64-bit types allowed."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_users_compile() -> Iterator[dict[str, bool]]:
    """Options for `jax.jit`: for tests of how programs round, such as those of equal bits."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {}
    jax.config.update("jax_disable_most_optimizations", True)
