"""The walls around the process of a job: what it may read and write, and how much it may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["OPEN", "JobLimits", "Walls"]


@dataclass(frozen=True)
class JobLimits:
    """What a process of a job, and each that it starts, may take (getrlimit(2)); 0 is no limit.

    Attributes:
        memory: bytes that it may allocate (RLIMIT_DATA).
        processes: processes and threads that all of a job's may be together (RLIMIT_NPROC); in a sandbox, because
            elsewhere the system counts everything of the user. The system sets root no such limit.
        files: files that it may have open (RLIMIT_NOFILE).
        size: bytes of the longest file that it may write (RLIMIT_FSIZE).
    """

    memory: int = 0
    processes: int = 0
    files: int = 0
    size: int = 0

    def word(self) -> str:
        """Return them as one word of a command line."""
        return f"{self.memory},{self.processes},{self.files},{self.size}"

    @classmethod
    def read(cls, word: str) -> JobLimits:
        """Return the limits of a word; those that are missing are no limits."""
        return cls(*map(int, word.split(",")))


OPEN = JobLimits()


@dataclass(frozen=True)
class Walls:
    """What the process of a job may reach, besides the system's programs and Python.

    Attributes:
        home: its scratch and working folder.
        reads: files and folders that it may read.
        writes: folders that it may write.
        hides: folders inside those that it must not see; ``reads`` below them are shown all the same.
        devices: whether it may use the machine's accelerators.
        shared: bytes of ``/dev/shm``, which is memory; 0 for half the machine's.
    """

    home: Path
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    hides: tuple[Path, ...] = ()
    devices: bool = False
    shared: int = 0
