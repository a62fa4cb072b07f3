"""What a machine has and a site can offer: CPUs, memory and GPUs, never given out twice."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.core.errors import ConfigError, JobError

__all__ = ["Answer", "Grant", "ResourceManager", "Resources", "bytes_of", "detected", "gpus_of"]


# ------------------------------------------------------------------ amounts of CPUs, memory and GPUs


_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{p}{end}": 1024 ** (i + 1) for i, p in enumerate("kmgt") for end in ("ib", "i")},
}
_UNITS |= {f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgt")}
_MOST = 2**53
"""The largest whole number up to which a float counts exactly; no machine has more."""


def bytes_of(said: int | str, where: str = "memory") -> int:
    """Return a size in bytes: a number, or a number with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024).

    Raises:
        ConfigError: it is not a size.
    """
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return said
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([a-zA-Z]*)\s*", said) if isinstance(said, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(
            f"{where}={said!r} is not a size", where=where, remedy="write for example 4GiB, or a number of bytes"
        )
    unit: int = _UNITS[found[2].lower()]
    return math.ceil(float(found[1]) * unit)


@dataclass(frozen=True)
class Resources:
    """An amount of everything that a site hands out.

    Attributes:
        cpus: processor cores; 0.5 is half of one. Thousandths are the smallest unit.
        memory: bytes.
        gpus: whole devices.
    """

    cpus: float = 0.0
    memory: int = 0
    gpus: int = 0

    def __post_init__(self) -> None:
        for name, value in (("cpus", self.cpus), ("memory", self.memory), ("gpus", self.gpus)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
                raise ConfigError(f"{name}={value!r}", where="resources", remedy="use a number from 0 to 2**53")
            if name != "cpus" and not isinstance(value, int):
                raise ConfigError(f"{name}={value!r}", where="resources", remedy="use a whole number")

    @classmethod
    def of(cls, tree: Any) -> Resources:
        """Return the inverse of ``tree``.

        Raises:
            ConfigError: it is not such a tree.
        """
        if not isinstance(tree, Mapping) or not set(tree) <= {"cpus", "memory", "gpus"}:
            raise ConfigError(f"{tree!r} are not resources", remedy="name cpus, memory and gpus")
        return cls(**tree)

    def tree(self) -> dict[str, Any]:
        """Return a plain tree, for a message."""
        return {"cpus": self.cpus, "memory": self.memory, "gpus": self.gpus}

    @property
    def units(self) -> tuple[int, int, int]:
        """Return thousandths of a core, bytes, devices: whole numbers, so that sums are exact."""
        return math.ceil(round(self.cpus * 1000, 6)), self.memory, self.gpus

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs, {self.memory / 2**30:.3g} GiB, {self.gpus} GPUs"


# ------------------------------------------------------------------ detects what this machine has, within the limits that its system sets for this process


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


# ------------------------------------------------------------------ what a site can offer, and which job holds it: CPUs, memory and GPUs, never given out twice


@dataclass(frozen=True)
class Answer:
    """A site's answer to an offer.

    Attributes:
        ok: it holds the resources for the job from now on.
        why: why not, in words.
        never: the site has too little even when nothing runs: asking again is useless.
    """

    ok: bool
    why: str = ""
    never: bool = False

    def tree(self) -> dict[str, Any]:
        """Return a plain tree, for a message."""
        return {"ok": self.ok, "why": self.why, "never": self.never}


@dataclass(frozen=True)
class Grant:
    """What a job holds at a site.

    Attributes:
        job: its id.
        need: how much.
        gpus: names of the devices that it holds.
    """

    job: str
    need: Resources
    gpus: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return variables for the job's process: it sees only its own devices, and libraries start as many threads as it has cores."""
        threads = str(max(1, int(self.need.cpus)))
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }


class ResourceManager:
    """Gives out a site's resources. A job holds its share until ``release``: nothing expires by itself.

    Args:
        total: all resources of the site.
        gpus: names of the devices as ``CUDA_VISIBLE_DEVICES`` takes them; by default ``0``, ``1``, ...
        site: the site's name, for messages.
        jobs: most jobs at once; no limit by default.
    """

    def __init__(
        self, total: Resources, *, gpus: tuple[str, ...] | None = None, site: str = "here", jobs: int | None = None
    ) -> None:
        names = tuple(str(i) for i in range(total.gpus)) if gpus is None else gpus
        if len(names) != total.gpus or len(set(names)) != len(names):
            raise ConfigError(
                f"there are {total.gpus} GPUs, but the names {list(names)}",
                where="resources",
                remedy="name each of them once",
            )
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs={jobs}", where="resources", remedy="let at least one job run")
        self.total = total
        self.site = site
        self._names = names
        self._most = jobs
        self._cap: tuple[int | None, int | None, int | None] = (None, None, None)
        self._held: dict[str, Grant] = {}

    def limit(self, most: tuple[float | None, int | None, int | None], jobs: int | None) -> None:
        """Set limits below the site's resources; what is held already stays so.

        Args:
            most: cores, bytes and devices; None sets no limit.
            jobs: most jobs at once.
        """
        cpus, memory, gpus = most
        self._cap = (None if cpus is None else math.floor(round(cpus * 1000, 6)), memory, gpus)
        self._most = jobs

    @property
    def held(self) -> dict[str, Grant]:
        """Return job -> what it holds."""
        return dict(self._held)

    @property
    def free(self) -> Resources:
        """Return what is free."""
        cpus, memory, gpus = self._free()
        return Resources(cpus / 1000, memory, gpus)

    def check(self, job: str, need: Resources) -> Answer:
        """Tell whether ``need`` is available now, without holding it. What the job itself holds counts as free."""
        short = _short(need, self._all(), "has {}")
        if short:
            return Answer(False, f"site {self.site!r} {short}, and the job asks for {need}", never=True)
        if self._most is not None and len(self._held.keys() - {job}) >= self._most:
            return Answer(False, f"site {self.site!r} runs {self._most} jobs, its most at once")
        short = _short(need, self._free(besides=job), "has {} free")
        return Answer(False, f"site {self.site!r} {short}, and the job asks for {need}") if short else Answer(True)

    def offer(self, job: str, need: Resources) -> Answer:
        """Check and, if available, hold it for the job, in one step. The same offer again changes nothing."""
        held = self._held.get(job)
        if held is not None and held.need == need:
            return Answer(True)
        answer = self.check(job, need)
        if answer.ok:
            kept = held.gpus[: need.gpus] if held is not None else ()
            taken = {gpu for name, grant in self._held.items() if name != job for gpu in grant.gpus} | set(kept)
            more = [name for name in self._names if name not in taken][: need.gpus - len(kept)]
            self._held[job] = Grant(job, need, (*kept, *more))
        return answer

    def reserve(self, job: str, need: Resources) -> Grant:
        """Hold ``need`` for a job.

        Raises:
            JobError: it is not available.
        """
        answer = self.offer(job, need)
        if not answer.ok:
            remedy = "ask for less" if answer.never else "wait until another job has ended"
            raise JobError(answer.why, where=f"job {job}", remedy=remedy)
        return self._held[job]

    def release(self, job: str) -> bool:
        """Release everything that a job holds; return whether it held anything."""
        return self._held.pop(job, None) is not None

    def _all(self) -> tuple[int, int, int]:
        # Capacity is rounded down, needs are rounded up.
        there = (math.floor(round(self.total.cpus * 1000, 6)), self.total.memory, self.total.gpus)
        cpus, memory, gpus = (
            has if most is None else min(has, most) for has, most in zip(there, self._cap, strict=True)
        )
        return cpus, memory, gpus

    def _free(self, besides: str | None = None) -> tuple[int, int, int]:
        used = [grant.need.units for job, grant in self._held.items() if job != besides]
        cpus, memory, gpus = (total - sum(column) for total, column in zip(self._all(), _columns(used), strict=True))
        return cpus, memory, gpus


def _columns(rows: list[tuple[int, int, int]]) -> list[list[int]]:
    return [[row[i] for row in rows] for i in range(3)]


def _short(need: Resources, there: tuple[int, int, int], phrase: str) -> str:
    """Return what is missing, or ``""``."""
    words = (f"{there[0] / 1000:g} CPUs", f"{there[1] / 2**30:.3g} GiB of memory", f"{there[2]} GPUs")
    missing = [word for word, asked, has in zip(words, need.units, there, strict=True) if asked > has]
    return phrase.format(" and ".join(missing)) if missing else ""
