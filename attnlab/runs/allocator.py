"""The policy of glibc for memory that is freed; other allocators are left as they are."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8  # <malloc.h>
_MIB = 2**20


def keep_freed_memory() -> None:
    """Keeps what this process frees, for its next arrays; best called before JAX's first use.

    A program of a CPU allocates its temporaries at each run. By default large blocks go back to the
    system at once, which clears every page of the next ones: up to a third of the time of a small
    model's training step.
    """
    if c := _glibc():
        c.mallopt(_M_ARENA_MAX, 1)  # the heap of a thread is of 64 MiB at most
        c.mallopt(_M_MMAP_MAX, 0)
        c.mallopt(_M_TRIM_THRESHOLD, -1)


@contextlib.contextmanager
def every_block_mapped() -> Iterator[None]:
    """Within `with`, each block of 64 KiB or more is mapped and unmapped on its own.

    Afterwards blocks of up to 32 MiB are kept, as glibc's own moving thresholds come to rest.
    """
    c = _glibc()
    if c is None:
        yield
        return
    c.mallopt(_M_MMAP_MAX, 2**16)
    c.mallopt(_M_MMAP_THRESHOLD, 64 * 1024)
    c.malloc_trim(0)
    try:
        yield
    finally:
        c.mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
        c.mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)


def _glibc() -> ctypes.CDLL | None:
    c = ctypes.CDLL(None) if sys.platform == "linux" else None
    return c if hasattr(c, "mallopt") else None
