"""The walls around the process of a job, and the filter of system calls that it sets on itself before any of its code is loaded."""

from __future__ import annotations

import errno
import functools
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OPEN", "JobLimits", "Walls", "filter_program", "shut_system_calls", "why_open"]


# ------------------------------------------------------------------ the walls around the process of a job: what it may read and write, and how much it may take


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


# ------------------------------------------------------------------ a filter of system calls that a job's process sets on itself, before any of the job's code is loaded
#
# A filter of system calls that a job's process sets on itself, before any of the job's code is loaded: it works without a sandbox too.
# The process gives up new privileges (PR_SET_NO_NEW_PRIVS of prctl(2)) and installs a program of classic BPF (seccomp(2)),
# which everything that it starts inherits and nothing can take off. Shut is what no job needs and what reaches beyond it or
# its bounds: keyrings, other processes' memory, programs in the kernel, namespaces and mounts, memory that no limit counts
# (System V IPC, secret memory), and sockets that are neither IP nor Unix. The machine's other entries are shut as a whole:
# x32 and i386 on x86-64, 32-bit ARM on arm64. Loopback and the network are the work of `--unshare-net`.
#
# Numbers: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.


_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38  # linux/prctl.h
_SET_MODE_FILTER, _GET_ACTION_AVAIL, _TSYNC = 1, 2, 1  # linux/seccomp.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NUMBER, _MACHINE, _FIRST = 0, 4, 16
"""Offsets in seccomp_data: the call, the entry, and the lower half of the first argument (both machines are little-endian)."""
_X32 = 0x40000000
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_NEWTIME = 0x80

_CALLS: dict[str, tuple[int, int]] = {
    # x86-64, arm64
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "memfd_secret": (447, 447),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
}  # fmt: skip
_SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
_CLONE, _CLONE3, _UNSHARE, _PRCTL, _SECCOMP = (56, 220), (435, 435), (272, 97), (157, 167), (317, 277)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Name -> its column above, and AUDIT_ARCH of linux/audit.h."""


def filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the filter for a machine: instructions of (code, jump if true, jump if false, value).

    Raises:
        KeyError: no numbers are known for it.
    """
    column, entry = _MACHINES[machine]
    refused = _ERRNO | errno.EPERM
    made = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, entry), (_RETURN, 0, 0, refused), (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        made += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, refused)]
    for numbers in _SOCKETS.values():
        known = [(_EQUAL, len(_FAMILIES) - at, 0, family) for at, family in enumerate(_FAMILIES)]
        made += _only(numbers[column], [*known, (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)])
    for number, mask in ((_CLONE[column], _NAMESPACES), (_UNSHARE[column], _NAMESPACES | _NEWTIME)):
        made += _only(number, [(_ANY_BIT, 0, 1, mask), (_RETURN, 0, 0, refused)])
    # A process that is not dumpable lets nobody see what it has open.
    made += _only(_PRCTL[column], [(_EQUAL, 0, 1, _PR_SET_DUMPABLE), (_RETURN, 0, 0, refused)])
    # Its flags are in memory, which a filter does not read. C libraries then use clone.
    made += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for numbers in _CALLS.values():
        made += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, refused)]
    return [*made, (_RETURN, 0, 0, _ALLOW)]


def _only(number: int, checks: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return what checks the first argument of a call, and allows what the checks do not end."""
    return [
        (_EQUAL, 0, len(checks) + 2, number),
        (_LOAD, 0, 0, _FIRST),
        *checks,
        (_RETURN, 0, 0, _ALLOW),
    ]


@functools.cache
def why_open() -> str:
    """Return why system calls cannot be shut here, in words; nothing if they can."""
    if sys.platform != "linux":
        return "this system has no filter of system calls"
    machine = platform.machine()
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        return f"their numbers on {machine} are not known"
    import ctypes

    action = ctypes.c_uint32(_ERRNO)
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(_SECCOMP[_MACHINES[machine][0]], _GET_ACTION_AVAIL, 0, ctypes.byref(action)) != 0:
        return "this kernel has no seccomp"
    return ""


def shut_system_calls() -> None:
    """Shut the system calls of this process and of everything that it starts, for good.

    Raises:
        OSError: the system does not do it.
    """
    import ctypes

    code = b"".join(struct.pack("HBBI", *step) for step in filter_program(platform.machine()))
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SECCOMP[_MACHINES[platform.machine()][0]]
    if (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        or libc.syscall(number, _SET_MODE_FILTER, _TSYNC, program) != 0
    ):
        raise OSError(ctypes.get_errno(), "system calls cannot be shut")
