"""Memory that was freed is there again without the system's help."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.network

COUNT_FAULTS = """
import resource
import numpy as np
from atoll.heap import keep_freed_memory

kept = keep_freed_memory()
def turn():
    held = [bytearray(18_000_000) for _ in range(4)]
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    turn()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[int, int]:
    """Whether it was done, and the page faults of five turns that take 72 MB and free them."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    done, count = found.stdout.split()
    return int(done), int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_freed_memory_is_kept_for_the_next_message() -> None:
    done, count = faults()
    assert done == 1
    assert count < 2_000
    done, count = faults(MALLOC_TRIM_THRESHOLD_="1000000")  # whoever says how memory is dealt with has the last word
    assert done == 0
    assert count > 50_000  # 5 turns of 72 MB are 88,000 pages


COUNT_HEAPS = """
import ctypes, sys, threading
from atoll.heap import share_one_heap

if sys.argv[1] == "told":
    share_one_heap()
library = ctypes.CDLL(None)
def take():
    library.malloc(200_000)  # ctypes lets go of Python's lock: threads meet in malloc
    ready.wait()
ready = threading.Barrier(3)
threads = [threading.Thread(target=take) for _ in range(2)]
for thread in threads:
    thread.start()
ready.wait()
for thread in threads:
    thread.join()
library.fopen.restype = ctypes.c_void_p
out = library.fopen(b"/dev/stdout", b"w")
library.malloc_info(0, ctypes.c_void_p(out))
library.fclose(ctypes.c_void_p(out))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
@pytest.mark.parametrize("told", ["told", "not"])
def test_threads_share_one_heap(told: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run(
        [sys.executable, "-c", COUNT_HEAPS, told], env=clean, capture_output=True, text=True, check=True
    ).stdout
    assert (found.count("<heap nr=") == 1) is (told == "told")


LOAD = """
import gc
{before}
from atoll.heap import loading

try:
    with loading():
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
        import {module}
except ImportError:
    pass
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""


@pytest.mark.parametrize(("before", "after"), [("", "True True"), ("gc.disable()", "False True")])
@pytest.mark.parametrize("module", ["json", "absent_module"])
def test_no_garbage_is_looked_for_while_modules_are_loaded(before: str, after: str, module: str) -> None:
    text = LOAD.format(before=before, module=module)
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == after
