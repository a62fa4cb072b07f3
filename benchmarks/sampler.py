"""Peak memory of a process tree, sampled from `/proc`.

PSS (proportional set size) counts a page shared by n processes as 1/n in each, so the sum over a tree is its actual
memory. Processes are found by a mark in their environment, which children inherit even when they are detached from
their parent, as Ray's are.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

PROC = Path("/proc")


def marked(mark: str) -> list[int]:
    """Return the processes whose environment contains `mark`."""
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone, or another user's
            continue
    return found


def pss(pid: int) -> int:
    """Return the bytes of proportional set size of one process; 0 once it is gone."""
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def reap(mark: str) -> int:
    """Kill the processes that a run left behind; return how many there were."""
    left = marked(mark)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(left)


class PeakMemory(threading.Thread):
    """Samples the marked processes until `stop()`; `peak` is in bytes, `processes` the most seen."""

    def __init__(self, mark: str, interval: float) -> None:
        super().__init__(daemon=True)
        self.mark = mark
        self.interval = interval
        self.peak = 0
        self.processes = 0
        self._done = threading.Event()

    def run(self) -> None:
        """Sample, sleep, repeat."""
        while not self._done.wait(self.interval):
            pids = marked(self.mark)
            self.processes = max(self.processes, len(pids))
            self.peak = max(self.peak, sum(map(pss, pids)))

    def stop(self) -> None:
        """Stop sampling."""
        self._done.set()
        self.join()
