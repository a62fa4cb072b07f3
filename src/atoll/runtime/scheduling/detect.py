"""Detects what this machine has, within the limits that its system sets for this process."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from atoll.core.errors import ConfigError

from .amounts import Resources

__all__ = ["detected", "gpus_of"]

_NAME = re.compile(r"\d+|[A-Za-z][\w.:/-]*")
"""A device as ``CUDA_VISIBLE_DEVICES`` takes it: its number, or GPU-... or MIG-..."""

_CGROUP = Path("/sys/fs/cgroup")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def detected(cgroup: Path = _CGROUP, nvidia: Path = _NVIDIA) -> tuple[Resources, tuple[str, ...]]:
    """Return the resources of this machine and the names of its GPUs.

    Cores are those that this process may use, by its affinity and the quota of its control group. Memory is that of the
    machine or of the control group, whichever is less; 0 if the system does not say. GPUs are NVIDIA's, narrowed by
    ``CUDA_VISIBLE_DEVICES``.

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


def gpus_of(text: str, there: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the GPUs that a text names.

    Args:
        text: how many, or names with commas between them; ``"0,"`` is the one device 0.
        there: names of the detected ones.
        where: where it was given, for errors.

    Raises:
        ConfigError: neither a number nor names, or more than were detected.
    """
    given = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in given if not _NAME.fullmatch(name)]
    if wrong:
        raise ConfigError(
            f"{wrong[0]!r} is neither a number of GPUs nor the name of one",
            where=where,
            remedy="give how many, such as 2, or their names: 0,1 or GPU-8932f937",
        )
    if "," in text or len(given) != 1 or not given[0].isdigit():
        return given
    count = int(given[0])
    if count > len(there):
        raise ConfigError(
            f"{count} GPUs, but only {len(there)} were found on this machine",
            where=where,
            remedy='give fewer, or name devices that were not found: 0,1 (or "0," for a single one)',
        )
    return there[:count]


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
