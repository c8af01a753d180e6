"""Each folder is one experiment: settings, measurement, report, figures.

None imports another, except `compare_peers`: it is a preset of `compare_lengths`.
"""

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from types import TracebackType


def _name_what_is_missing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    name = str(getattr(error, "name", None)).partition(".")[0]
    if not issubclass(kind, ModuleNotFoundError) or name in ("attnlab", "experiments"):
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"{sys.executable} has no package {name!r}: `launch/local NAME` without --no_env makes an "
        "environment that has it, and so does `pip install '.[all]'` in this one",
        file=sys.stderr,
    )


def _import_jax_quietly() -> None:
    """Imports JAX, whose compiler for absent GPUs says six times that there is no driver.

    JAX 0.10's does so, in C++ and while it is imported. What else is said there is said here.
    """
    errors = os.dup(2)
    kept: Callable[[str], str] = str
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            from attnlab.bench.workers import without_chatter

            kept = without_chatter
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            said.seek(0)
            print(end=kept(said.read().decode(errors="replace")), file=sys.stderr)


# `python -m experiments.NAME` first imports packages for seconds, where no `try` can catch an error
# or Ctrl-C. So both are handled here, until `command_line.start` takes that back.
if sys.argv[:1] == ["-m"]:
    os.environ["MPLBACKEND"] = "agg"  # figures are files; a notebook's backend may not be here
    sys.excepthook = _name_what_is_missing
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where nohup ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.environ.get("JAX_PLATFORMS") == "cpu" and importlib.util.find_spec("jax_cuda12_plugin"):
        _import_jax_quietly()
