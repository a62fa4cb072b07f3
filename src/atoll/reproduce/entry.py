"""What a reproduction is made of: an entry, its claims, and the lab that runs and keeps its trainings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atoll.core.errors import CheckpointError, DataError
from atoll.core.job import Job
from atoll.runs import INTERRUPTED, RunFolder, Stopping, execute, parse_config
from atoll.runs.config import RunConfig

__all__ = ["Claim", "Entry", "Interrupted", "Lab", "NotKept", "TrainedRun"]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and what we found.

    Attributes:
        claim: the statement, with its place in the paper.
        paper: the paper's number; ``None`` where it gives none.
        ours: our number.
        holds: whether it holds here; ``None`` where it was not run, or what was run does not decide it.
        note: by which rule it was judged, and how our setting differs.
        part: the heading below which a page has it; empty for the statements that come first.
    """

    claim: str
    paper: Any
    ours: Any
    holds: bool | None
    note: str = ""
    part: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        if self.holds is None:
            return "not run" if self.ours is None else "undecided"
        return "holds" if self.holds else "does not hold"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """One reproduction.

    Attributes:
        name: what the command line says.
        title: one line.
        source: the publication.
        needs: what it needs that Atoll does not bring along, in words; empty for nothing.
        run: ``(lab, quick) -> claims``.
        folder: the folder of its trainings; empty for its name. Reproductions that have trainings in common share one.
    """

    name: str
    title: str
    source: str
    run: Callable[[Lab, bool], list[Claim]]
    needs: str = ""
    folder: str = ""


class Interrupted(Exception):  # noqa: N818 - a request of the user, not an error
    """Somebody stopped a reproduction; what it finished is kept."""


class NotKept(Exception):  # noqa: N818 - says what is, not what went wrong
    """A training that was not finished, where nothing may be trained."""


@dataclass(frozen=True)
class TrainedRun:
    """A training of a reproduction, as its run folder keeps it.

    Attributes:
        folder: the run's folder.
        rows: a record a round.
        seconds: how long it took when it ran.
    """

    folder: RunFolder
    rows: list[dict[str, Any]]
    seconds: float

    def best(self, metric: str = "test/accuracy") -> float:
        """The best value of a metric."""
        return max(self._values(metric))

    def last(self, metric: str = "test/accuracy") -> float:
        """The last value of a metric."""
        return self._values(metric)[-1]

    def _values(self, metric: str) -> list[float]:
        found = [float(row[metric]) for row in self.rows if row.get(metric) is not None]
        if not found:
            raise DataError(
                f"{metric} was never measured", where=str(self.folder.path), remedy="give the data a test set"
            )
        return found

    def rounds_to(self, target: float, metric: str = "test/accuracy") -> float | None:
        """Rounds until the best value so far crosses a target, with linear interpolation (McMahan et al. 2017, section 3)."""
        before, best = 0, 0.0
        for row in self.rows:
            if row.get(metric) is None:
                continue
            value = max(best, float(row[metric]))
            if value >= target:
                step = int(row["round"]) - before
                return round(before + (target - best) / (value - best) * step, 1)
            before, best = int(row["round"]), value
        return None


@dataclass
class Lab:
    """Runs trainings and keeps them: one that was finished is read back, one that was stopped goes on.

    Attributes:
        folder: where run folders are kept, one a configuration, named by its digest.
        stopping: asks a training to stop.
        watch: called with the title and the job of each training that begins; gives a listener for its records.
        fresh: forget what was kept.
        kept: train nothing.
    """

    folder: Path
    stopping: Stopping = field(default_factory=Stopping)
    watch: Callable[[str, Job], Callable[[dict[str, Any]], None]] | None = None
    fresh: bool = False
    kept: bool = False
    seconds: float = 0.0

    def train(self, settings: dict[str, Any]) -> TrainedRun:
        """Train what a configuration says, or read it back.

        Raises:
            Interrupted: somebody asked to stop.
            NotKept: it would have to be trained, and nothing may be.
        """
        from atoll import __version__

        config = parse_config(settings, f"reproduction {settings.get('name')!r}")
        folder = RunFolder(self.folder / f"{config.name}-{config.digest()}-{__version__}")
        if self.fresh and folder.path.exists():
            shutil.rmtree(folder.path)
        if not self._finished(folder):
            if self.kept:
                raise NotKept(config.name)
            self._execute(config, folder)
        manifest = folder.manifest()
        self.seconds += float(manifest["seconds"])
        return TrainedRun(folder, folder.metrics(), float(manifest["seconds"]))

    def _finished(self, folder: RunFolder) -> bool:
        try:
            return folder.begun and folder.manifest()["status"] == "finished" and bool(folder.metrics())
        except CheckpointError:
            return False

    def _execute(self, config: RunConfig, folder: RunFolder) -> None:
        listen = None if self.watch is None else self.watch(config.name, config.made(checking=True))
        result = execute(config, folder, resume=True, stopping=self.stopping, on_record=listen, report=False)
        if result.reason == INTERRUPTED:
            raise Interrupted(str(folder.path))
