"""What a site can offer, and which job holds it: CPUs, memory and GPUs, never given out twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError, JobError

from .amounts import Resources

__all__ = ["Answer", "Grant", "ResourceManager"]


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
