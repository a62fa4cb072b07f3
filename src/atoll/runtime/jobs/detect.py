"""What this machine has, within the limits that its system sets for this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .amounts import Resources

__all__ = ["detected"]

_CGROUP = Path("/sys/fs/cgroup")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def detected(cgroup: Path = _CGROUP, nvidia: Path = _NVIDIA) -> tuple[Resources, tuple[str, ...]]:
    """The resources of this machine and the names of its GPUs.

    Cores are those that this process may use: its affinity and the quota of its control group. Memory is that of the machine or of the
    control group, whichever is less; 0 where the system does not say. GPUs are NVIDIA's, narrowed by ``CUDA_VISIBLE_DEVICES``.

    Args:
        cgroup: where version 2 of control groups is mounted.
        nvidia: where NVIDIA's driver lists its devices.
    """
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _words(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cpus = max(0.001, min(cpus, int(quota[0]) / int(quota[1])))
    memory = 0
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _words(cgroup / "memory.max")
    if limit and limit[0].isdigit():
        memory = min(memory or int(limit[0]), int(limit[0]))
    gpus = _gpus(nvidia)
    return Resources(cpus, memory, len(gpus)), gpus


def _gpus(nvidia: Path) -> tuple[str, ...]:
    there = tuple(str(i) for i, _ in enumerate(nvidia.iterdir())) if nvidia.is_dir() else ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return tuple(dict.fromkeys(name.strip() for name in visible.split(",") if name.strip())) if there else ()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
