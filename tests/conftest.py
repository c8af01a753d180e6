"""What every test runs under.

Warnings are errors too: `filterwarnings` in pyproject.toml.
"""

import contextlib
import gc
import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

# The CPU unless the caller names another platform: test workers cannot share an accelerator.
# tests/device, whose worker has it alone, asks for what was given.
os.environ.setdefault("GIVEN_JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", ""))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A second run compiles nothing that has not changed, in whatever clone of this machine; programs
# that tests start use it as well.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    + "/attnlab/compiled-by-tests",
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

UNUSED_DAYS = 7  # after which a compiled program is forgotten

collect_ignore = ["device"]  # which is for an accelerator, and named on the command line

if importlib.util.find_spec("hypothesis"):  # tests/device does without
    import hypothesis

    hypothesis.settings.register_profile("attnlab", deadline=None)  # machines are shared
    hypothesis.settings.load_profile("attnlab")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Forgets the compiled programs that no test has read lately."""
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    is_worker = hasattr(session.config, "workerinput")  # whose parent does it for all
    if is_worker or folder.name != "compiled-by-tests":  # or the caller's own
        return
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # the tests of another clone forget as well
            if max(path.stat().st_atime, path.stat().st_mtime) < oldest:
                path.unlink()


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
