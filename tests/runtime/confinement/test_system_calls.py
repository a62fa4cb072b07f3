"""The filter of system calls: read as the kernel reads it, for both machines, and set in real processes with what jobs use."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.runtime.confinement.walls import filter_program, why_open

SHUT = pytest.mark.skipif(bool(why_open()), reason=f"the filter cannot be set here: {why_open()}")
ENTRY = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALL = {  # of asm/unistd_64.h and asm-generic/unistd.h, not of the source
    "x86_64": {"read": 0, "mmap": 9, "socket": 41, "socketpair": 53, "clone": 56, "execve": 59, "ptrace": 101, "prctl": 157, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "process_vm_readv": 310, "process_vm_writev": 311, "seccomp": 317, "memfd_create": 319, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_open": 434, "clone3": 435},
    "aarch64": {"read": 63, "mmap": 222, "socket": 198, "socketpair": 199, "clone": 220, "execve": 221, "ptrace": 117, "prctl": 167, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "perf_event_open": 241, "process_vm_readv": 270, "process_vm_writev": 271, "seccomp": 277, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_open": 434, "clone3": 435},
}  # fmt: skip
NAMED = ("add_key", "request_key", "keyctl", "bpf", "userfaultfd", "perf_event_open", "ptrace", "process_vm_readv", "process_vm_writev", "io_uring_setup", "io_uring_enter", "io_uring_register")  # fmt: skip
ALLOWED = 0x7FFF0000


def judged(machine: str, number: int, first: int = 0, entry: int | None = None) -> int:
    """What the filter says to a call: 0, or the error; as the kernel's interpreter computes it."""
    data = {0: number & 0xFFFFFFFF, 4: ENTRY[machine] if entry is None else entry, 16: first & 0xFFFFFFFF}
    program, at, held = filter_program(machine), 0, 0
    for _ in range(len(program)):
        code, true, false, value = program[at]
        if code == 0x06:
            return 0 if value == ALLOWED else value & 0xFFFF if value >> 16 == 5 else -1
        if code == 0x20:
            held = data[value]
            at += 1
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += 1 + (true if holds else false)
    raise AssertionError("the program does not end")


@pytest.mark.parametrize("machine", list(ENTRY))
def test_what_no_job_needs_is_shut_and_the_rest_is_open(machine: str) -> None:
    calls = CALL[machine]
    assert {name: judged(machine, calls[name]) for name in NAMED} == dict.fromkeys(NAMED, errno.EPERM)
    for name in ("socket", "socketpair"):
        found = {family: judged(machine, calls[name], family) for family in (*range(60), 0xFFFFFFFF)}
        assert {family for family, error in found.items() if not error} == {1, 2, 10}
        assert set(found.values()) == {0, errno.EAFNOSUPPORT}
        assert judged(machine, calls[name], (1 << 32) | 16)  # the kernel reads the lower half
    assert judged(machine, calls["clone3"]) == errno.ENOSYS
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert judged(machine, calls["clone"], 17 | flag) == judged(machine, calls["unshare"], flag) == errno.EPERM
    for number, first in (
        ("clone", 17),
        ("clone", 0x3D0F00),
        ("unshare", 0x400),
        ("prctl", 1),
        ("prctl", 36),
        ("prctl", 15),
    ):
        assert judged(machine, calls[number], first) == 0
    assert judged(machine, calls["prctl"], 4) == errno.EPERM
    assert not any(
        judged(machine, calls[name]) for name in ("read", "mmap", "execve", "seccomp", "memfd_create", "pidfd_open")
    )


@given(
    st.sampled_from(list(ENTRY)),
    st.integers(0, 0xFFFFFFFF),
    st.sampled_from([0x40000003, 0x40000028, 0, 0xC000003E, 0xC00000B7]),
)
def test_the_other_entries_of_a_machine_are_shut(machine: str, number: int, entry: int) -> None:
    if entry != ENTRY[machine]:
        assert judged(machine, number, entry=entry) == errno.EPERM
    if machine == "x86_64":
        assert judged(machine, 0x40000000 | number) == errno.EPERM


def inside(tmp_path: Path, code: str, seconds: float = 120.0) -> str:
    """What a module says that runs as a job's process does, with the filter on."""
    (tmp_path / "tried.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "-m", "atoll.runtime.daemon.child", str(os.getpid()), "0,0,0,0", "--shut", "tried"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, capture_output=True, check=False, text=True, timeout=seconds, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


TRIED = """
import ctypes, errno, json, mmap, os, platform, socket, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
calls = json.loads(sys.argv[1]) if len(sys.argv) > 1 else CALLS


def tried(name, *words):
    ctypes.set_errno(0)
    return 0 if libc.syscall(calls[name], *words) >= 0 else ctypes.get_errno()


def made(family):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        return 0
    except OSError as error:
        return error.errno


def old_entry():
    # getpid by the entry of i386: mov eax, 20; int 0x80; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return -call()


there = []
thread = threading.Thread(target=lambda: there.append(tried("keyctl", 0, -3, 0, 0, 0)))
thread.start()
thread.join()
print(json.dumps({
    "named": {name: tried(name, 0, 0, 0, 0, 0) for name in NAMED},
    "keyring": tried("add_key", b"user", b"planted", b"x", 1, -3),
    "families": {family: made(family) for family in (1, 2, 10, 16, 17, 38, 40)},
    "thread": there[0],
    "child": subprocess.run([sys.executable, "-c", "import ctypes; c = ctypes.CDLL(None); print(c.syscall(%d, 0, -3, 0, 0, 0))" % calls["keyctl"]], capture_output=True, text=True).stdout.strip(),
    "i386": old_entry() if platform.machine() == "x86_64" else 1,
    "first to go": open("/proc/self/oom_score_adj").read().strip(),
    "privileges": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("NoNewPrivs", "Seccomp:"))],
}))
"""


@pytest.mark.network
@SHUT
def test_a_process_cannot_do_what_is_shut_in_any_thread_child_or_entry(tmp_path: Path) -> None:
    calls = f"CALLS, NAMED = {CALL[platform.machine()]!r}, {NAMED!r}\n"
    got = json.loads(inside(tmp_path, calls + TRIED))
    assert got["named"] == dict.fromkeys(NAMED, errno.EPERM)
    assert (got["keyring"], got["thread"], got["child"], got["i386"]) == (errno.EPERM, errno.EPERM, "-1", 1)
    families = {int(family): error for family, error in got["families"].items()}
    assert families == {1: 0, 2: 0, 10: families[10], **dict.fromkeys((16, 17, 38, 40), errno.EAFNOSUPPORT)}
    assert families[10] in (0, errno.EAFNOSUPPORT)  # a machine may have no IPv6
    assert got["privileges"] == ["1", "2"]
    assert got["first to go"] == "1000"


TORCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(rows, batch_size=16, num_workers=2):
        step.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        step.step()
    print("trained", len(list(model.parameters())))
"""
DUCKDB = """
import duckdb
print("trained", duckdb.execute("select sum(range) from range(1000)").fetchone()[0])
"""
RAY = """
import ray

if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)

    @ray.remote
    def add(a, b):
        return a + b

    print("trained", ray.get(add.remote(1, 2)))
    ray.shutdown()
"""


@pytest.mark.network
@SHUT
@pytest.mark.parametrize(
    ("library", "code", "told"),
    [
        ("torch", TORCH, "trained 4"),
        ("duckdb", DUCKDB, "trained 499500"),
        pytest.param("ray", RAY, "trained 3", marks=pytest.mark.slow),
    ],
)
def test_libraries_of_jobs_run_under_the_filter(tmp_path: Path, library: str, code: str, told: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert told in inside(tmp_path, code, 240.0)
