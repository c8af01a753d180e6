"""A module run as `python -m` runs it, which ends with the process that holds its standard input.

python -P -m experiments.tables.child MODULE [FLAG ...]
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_parent() -> None:
    """Waits until nobody holds the other end of the standard input, and ends this process."""
    while os.read(0, 1024):  # not sys.stdin, whose lock Python wants when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
