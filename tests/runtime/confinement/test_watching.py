"""What a watching process counts of a job's processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.runtime.confinement import watching
from atoll.runtime.confinement.watching import MemoryMeter, measure_nameless, processes_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the system tells of processes below /proc on Linux alone"),
    pytest.mark.network,
]
MIB = 1 << 20


@contextmanager
def running(code: str, *words: str) -> Iterator[int]:
    """A process that has done what the code says, and stays."""
    whole = f"{code}\nimport sys\nprint('ready', flush=True); sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", whole, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.stdin.close()


def test_a_file_without_a_name_counts_while_it_is_open_or_mapped(tmp_path: Path) -> None:
    code = """
import mmap, os, sys
os.chdir(sys.argv[1])
first = open("first", "w+b"); first.write(bytes(1_000_000)); first.flush(); os.unlink("first")
second = open("second", "w+b"); second.write(bytes(2_000_000)); second.flush(); os.unlink("second")
kept = mmap.mmap(second.fileno(), 2_000_000); second.close()
"""
    with running(code, str(tmp_path)) as pid:
        found = measure_nameless([pid])
    assert 3_000_000 <= found < 3_200_000
    assert measure_nameless([pid]) == 0


FILLED = "def fill(view):\n    for at in range(0, len(view), 4096): view[at] = 1\n    return view\n"
WAYS = {
    "private": "kept = bytearray(64 << 20); fill(kept)",
    "shared": "import mmap; kept = fill(mmap.mmap(-1, 64 << 20))",
    "memory file": "import os; kept = os.memfd_create('x'); os.write(kept, bytes(64 << 20))",
    "mapped memory file": "import mmap, os; file = os.memfd_create('x'); os.ftruncate(file, 64 << 20); kept = fill(mmap.mmap(file, 64 << 20))",
    "closed memory file": "import mmap, os; file = os.memfd_create('x'); os.ftruncate(file, 64 << 20); kept = fill(mmap.mmap(file, 64 << 20)); os.close(file)",
    "shared by children": "import mmap, os, signal; kept = fill(mmap.mmap(-1, 64 << 20)); [os.fork() or (sum(kept[::4096]), os.read(0, 1), os._exit(0)) for _ in range(3)]",
    "of a child": "import os; r, w = os.pipe(); os.fork() or (fill(kept := bytearray(64 << 20)), os.write(w, b'x'), os.read(0, 1), os._exit(0)); os.read(r, 1)",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_memory_counts_once_however_it_is_taken(way: str) -> None:
    with running("") as pid:
        bare = MemoryMeter().measure([pid], 0)
    with running(f"{FILLED}{WAYS[way]}") as pid:
        pids = processes_of(pid)
        exact, above = MemoryMeter().measure(pids, 0), MemoryMeter().measure(pids, 1 << 50)
    assert bare < 16 * MIB
    assert 62 * MIB <= exact - bare < (76 if len(pids) == 1 else 90) * MIB
    assert exact <= above + MIB


def test_processes_are_found_without_the_list_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; os.fork() or (os.setsid(), os.fork() or os.read(0, 1), os.read(0, 1), os._exit(0))"
    with running(code) as pid:
        found = processes_of(pid)
        searched = watching._find_descendants(pid)
    assert set(found) >= {pid}
    assert len(searched) >= 2
