"""``python -m atoll.runtime.daemon.child PARENT LIMITS [--shut] MODULE [ARGUMENTS]``: run a module that dies with its parent, within limits.

PARENT is the parent's process id, with ``+`` behind it for a guardian between the two. LIMITS is the word of a
`atoll.runtime.confinement.walls.JobLimits`. With ``--shut``, the system calls that no job needs are shut first.

The parent cannot arrange this itself: between fork and exec no Python may run in a process with threads.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from atoll.heap import keep_freed_memory

from ..confinement.walls import JobLimits, shut_system_calls

__all__ = ["END", "SHUT", "die_with_parent", "guard", "keep_limits", "main"]


# ------------------------------------------------------------------ a guardian for a job that is not in a sandbox
#
# A guardian for a job that is not in a sandbox: when the job or its daemon ends, it ends everything that the job has started.
# The job's process is its child, and orphans become its children too (PR_SET_CHILD_SUBREAPER of prctl(2)): also those
# that have left their parent, their group and their session. It holds no connection and imports nothing.


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


# ------------------------------------------------------------------ ``python -m atoll.runtime.daemon.child PARENT LIMITS [--shut] MODULE [ARGUMENTS]``
#
# ``python -m atoll.runtime.daemon.child PARENT LIMITS [--shut] MODULE [ARGUMENTS]``: run a module that dies with its parent, within limits.


SHUT = "--shut"
ORPHANED = 113
"""Exit code of a child whose parent died before it started."""


def die_with_parent(parent: int) -> bool:
    """Ask the system to kill this process when its parent ends, however that ends; Linux only.

    Args:
        parent: the process id that this process was started by.

    Returns:
        Whether the parent is still there.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def keep_limits(limits: JobLimits) -> None:
    """Set the limits of this process, and of each that it starts; beyond that of memory, allocation raises MemoryError.

    Memory counts its data and private writable mappings (RLIMIT_DATA of getrlimit(2)), not libraries and files that it
    maps.
    """
    if sys.platform != "linux":
        return
    import resource

    for name, most in (
        (resource.RLIMIT_DATA, limits.memory), (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.files), (resource.RLIMIT_FSIZE, limits.size),
    ):  # fmt: skip
        hard = resource.getrlimit(name)[1]
        if most > 0 and (hard == resource.RLIM_INFINITY or most < hard):
            resource.setrlimit(name, (most, most))


def offer_first() -> None:
    """Have the system end this process, and what it starts, before others where memory runs out."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main(argv: list[str]) -> None:
    """Tie this process to its parent, then become the module."""
    shut = argv[2] == SHUT
    parent, limits, module, *rest = [*argv[:2], *argv[2 + shut :]]
    keep_limits(JobLimits.read(limits))
    if shut:
        offer_first()
    keep_freed_memory()
    # Ctrl-C at a terminal goes to everyone: the daemon decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not die_with_parent(int(parent.removesuffix("+"))):
        sys.exit(ORPHANED)
    if parent.endswith("+"):
        guard()
    if shut:
        shut_system_calls()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
