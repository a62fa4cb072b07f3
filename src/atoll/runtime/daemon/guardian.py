"""A guardian for a job that is not in a sandbox: when the job or its daemon ends, it ends everything that the job has started.

The job's process is its child, and orphans become its children too (PR_SET_CHILD_SUBREAPER of prctl(2)): also those
that have left their parent, their group and their session. It holds no connection and imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

__all__ = ["END", "guard"]

END = signal.SIGHUP
"""The signal on which a guardian ends its job and everything that it has started; the system sends it when the daemon dies."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def guard() -> None:
    """Fork: return in the child, which is the job's process; stay in the parent until the job ends, and end like it. Linux only.

    Call it before there are threads, while SIGHUP may still be pending for a daemon that has died.
    """
    if sys.platform != "linux":
        return
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = os.getpid()
    child = os.fork()
    if child:
        _stay(child, prctl)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guardian:
        os._exit(1)


def _stay(child: int, prctl: object) -> None:
    def end_processes(number: int, frame: FrameType | None) -> None:
        del number, frame
        _end_all()
        os._exit(128 + END)

    signal.signal(END, end_processes)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its group's signal is for the job
    prctl(_PR_SET_PDEATHSIG, END, 0, 0, 0)  # type: ignore[operator]
    os.closerange(3, 1 << 16)  # the line belongs to the job: its daemon must notice the job's end
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    _end_all()
    if os.WIFSIGNALED(status):  # end in the same way
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _end_all() -> None:
    """Kill every descendant, until there is none."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            os.sched_yield()
        except ChildProcessError:
            return


def _descendants(ancestor: int) -> set[int]:
    parents = dict(_parents())
    found, more = set[int](), {ancestor}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(path.parent.name), int(path.read_bytes().rpartition(b")")[2].split()[1])
