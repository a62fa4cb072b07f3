"""The parts of a reproduction: an entry, its claims, and the lab that runs and keeps its trainings."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from atoll.core.errors import CheckpointError, DataError
from atoll.core.job import Job
from atoll.runs import INTERRUPTED, RunFolder, Stopping, execute, parse_config
from atoll.runs.config import RunConfig

__all__ = ["Basis", "Claim", "Entry", "Interrupted", "Kind", "Lab", "NotKept", "TrainedRun", "keeping_nothing"]

Basis = Literal["measured", "derived", "circular"]
"""Where our number comes from: runs of ours; arithmetic on the paper's own numbers; or a model that the paper's number was read with."""

Kind = Literal["statement", "figure"]
"""What a line says: a statement that can hold or not, or a number of ours that no statement is about."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, and our result; or a figure of ours that stands beside them.

    Attributes:
        claim: the statement, with its place in the paper.
        paper: the paper's number; ``None`` if it gives none.
        ours: our number.
        holds: whether it holds here; ``None`` if it was not run, or the runs do not decide it.
        note: the rule that judges it, and how our setting differs.
        part: its heading on a page; empty for the first statements.
        basis: ``"measured"`` for runs of ours; ``"derived"`` for arithmetic on the paper's own numbers and formulas, such as its rounds; ``"circular"`` if the
            paper's number was itself read with the help of our model: it is shown, but not judged.
        kind: ``"figure"`` for a measured number that no statement is about: it is shown, and counted in no verdict.
    """

    claim: str
    paper: Any
    ours: Any
    holds: bool | None
    note: str = ""
    part: str = ""
    basis: Basis = "measured"
    kind: Kind = "statement"

    @classmethod
    def figure(cls, name: str, ours: Any, note: str = "", part: str = "") -> Claim:
        """Make a figure: a number of ours to show, without a statement about it."""
        return cls(name, None, ours, None, note, part, kind="figure")

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        if self.basis == "circular":
            return "not judged"
        if self.holds is None:
            return "not run" if self.ours is None else "figure" if self.kind == "figure" else "undecided"
        return "holds" if self.holds else "does not hold"

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """One reproduction.

    Attributes:
        name: its name on the command line.
        title: one line.
        source: the publication.
        needs: what it needs that Atoll does not include, in words; empty for nothing.
        run: ``(lab, quick) -> claims``.
        folder: the folder of its trainings; empty for its name. Reproductions with common trainings share one.
        data: the data sets that it reads from ``ATOLL_DATA``, by name; they are looked for before anything runs.
        quick_data: those that ``--quick`` reads; ``None`` for the same.
    """

    name: str
    title: str
    source: str
    run: Callable[[Lab, bool], list[Claim]]
    needs: str = ""
    folder: str = ""
    data: tuple[str, ...] = ()
    quick_data: tuple[str, ...] | None = None


def keeping_nothing(name: str) -> Callable[[Callable[[bool], list[Claim]]], Callable[[Lab, bool], list[Claim]]]:
    """Make an entry's ``run`` from ``(quick) -> claims``: all of it is worked out each time, and its seconds are counted.

    Args:
        name: the entry's name, for `NotKept` where nothing may be trained.
    """

    def around(run: Callable[[bool], list[Claim]]) -> Callable[[Lab, bool], list[Claim]]:
        def counted(lab: Lab, quick: bool) -> list[Claim]:
            with lab.working(name):
                return run(quick)

        return counted

    return around


class Interrupted(Exception):  # noqa: N818 - a request of the user, not an error
    """The user stopped a reproduction; finished trainings are kept."""


class NotKept(Exception):  # noqa: N818 - says what is, not what went wrong
    """A training is not finished, but nothing may be trained."""


@dataclass(frozen=True)
class TrainedRun:
    """A training of a reproduction, as its run folder keeps it.

    Attributes:
        folder: the run's folder.
        rows: one record for each round.
        seconds: how long it took when it ran.
    """

    folder: RunFolder
    rows: list[dict[str, Any]]
    seconds: float

    def best(self, metric: str = "test/accuracy") -> float:
        """Return the best value of a metric."""
        return max(self._values(metric))

    def last(self, metric: str = "test/accuracy") -> float:
        """Return the last value of a metric."""
        return self._values(metric)[-1]

    def _values(self, metric: str) -> list[float]:
        found = [float(row[metric]) for row in self.rows if row.get(metric) is not None]
        if not found:
            raise DataError(
                f"{metric} was never measured", where=str(self.folder.path), remedy="give the data a test set"
            )
        return found

    def rounds_to(self, target: float, metric: str = "test/accuracy") -> float | None:
        """Return the rounds until the best value so far crosses a target, with linear interpolation (McMahan et al. 2017, section 3)."""
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
    """Runs trainings and keeps them: a finished one is read back, a stopped one continues.

    Attributes:
        folder: the folder of run folders, one for each configuration, named by its digest.
        stopping: tells whether a training must stop.
        watch: called with the title and the job of each training that starts; returns a listener for its records.
        fresh: discard kept trainings.
        kept: train nothing.
    """

    folder: Path
    stopping: Stopping = field(default_factory=Stopping)
    watch: Callable[[str, Job], Callable[[dict[str, Any]], None]] | None = None
    fresh: bool = False
    kept: bool = False
    seconds: float = 0.0

    def train(self, settings: dict[str, Any]) -> TrainedRun:
        """Train a configuration, or read it back.

        Raises:
            Interrupted: the user asked to stop.
            NotKept: it is not kept, and nothing may be trained.
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

    def scores(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the plain numbers of a training that no configuration describes, or read them back.

        Args:
            name: names the file that keeps them; it tells all settings.
            make: trains, and returns the numbers.

        Raises:
            Interrupted: the user asked to stop.
            NotKept: they are not kept, and nothing may be trained.
        """
        from atoll import __version__

        path = self.folder / f"{name}-{__version__}.json"
        if path.exists() and not self.fresh:
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        with self.working(name):
            if self.stopping.asked:
                raise Interrupted(str(path))
            made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))
        return made

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Count the seconds of work of which nothing is kept.

        Raises:
            NotKept: nothing may be trained.
        """
        if self.kept:
            raise NotKept(name)
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

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
