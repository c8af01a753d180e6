"""What glibc does with freed memory, in a process of its own: the settings are the process's."""

import ctypes
import sys

import pytest

from tests.several import run_python

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")), reason="not glibc"
)

SIZE = 100 * 2**20  # more than a thread's heap can hold
SCRIPT = """
import ctypes, resource, threading
from attnlab.runs.allocator import every_block_mapped, keep_freed_memory

c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc.argtypes, c.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def use():
    block = c.malloc(SIZE)
    c.memset(block, 1, SIZE)
    c.free(block)

def in_thread():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

def faults(run):
    run()  # the first one's pages are new
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

by_default = faults(use)
keep_freed_memory()
print(by_default, faults(use), faults(in_thread))
with every_block_mapped():
    print(faults(use))
"""


def test_freed_memory_is_used_again_but_not_where_every_block_is_mapped():
    script = SCRIPT.replace("SIZE", str(SIZE))
    by_default, kept, in_thread, mapped = map(int, run_python("-c", script).split())
    assert kept < by_default / 10  # of 50 pages of 2 MiB, or of 25,600 of 4 KiB
    assert in_thread < max(by_default / 10, 20)  # a thread itself has a few
    assert mapped > by_default / 2
