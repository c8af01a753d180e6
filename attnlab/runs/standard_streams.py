"""Standard streams whose reader may leave (`| head`), which is to this process as Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
from typing import Any

__all__ = ["guarded"]


class _Output(io.FileIO):
    """A standard stream whose reader may leave: then this process is asked to stop."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):  # said once; what is left goes nowhere
                raise
            signal.raise_signal(signal.SIGINT)
            return len(data)


def guarded(stream: Any) -> io.TextIOWrapper:
    """The stream, which says what it cannot write; None, a closed one, takes all."""
    if stream is None:  # closed, as by >&-
        return open(os.devnull, "w")
    stream.flush()
    raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    # A terminal without "×" is no reason to fail.
    return io.TextIOWrapper(raw, stream.encoding, errors="replace", line_buffering=True)
