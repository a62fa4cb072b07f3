"""A world: everything a federation runs in — who, where the data is, which engine, what time, which folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .batteries import Batteries
from .checkpoint import CheckpointStore
from .clock import Clock, Cost, Free
from .cohort import Population
from .decisions import Decisions
from .event import Ledger, SeededSecret
from .executor import Executor
from .host import Host
from .island import AllowAll, Policy
from .journal import Journal
from .party import Roster
from .store import StateStore
from .task import Task, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine
    from .traffic import Traffic

__all__ = ["World"]


@dataclass
class World:
    """What a program runs in.

    Attributes:
        population: the islands' data.
        engine: how tasks are run.
        roster: everyone; by default the population alone.
        seed: of every reproducible stream.
        clock: virtual or real.
        cost: the model of devices and links; by default nothing takes time.
        folder: where checkpoints, journals and the privacy ledger go; ``None`` keeps them in memory.
        resume: continue the run in the folder.
        errors: a task that raises stops the program (``"raise"``) or counts as a party that fell silent (``"drop"``).
        policy: the islands' rule for what may leave them.
        secret_seed: makes the islands' secrets reproducible, which voids every guarantee.
        state_memory: bytes of memory that the parties' private states may take where tasks run; what goes beyond is kept in memory-mapped files
            in the folder (or the system's temporary one), with the same results. ``None`` is a quarter of this machine's memory.
        registry: tasks and other objects that a program registered by name.
        on_record: called with every record of metrics.
        on_restore: called with the records of the checkpoint that a resumed run continues from; later ones never happened.
    """

    population: Population
    engine: Engine
    roster: Roster = None  # type: ignore[assignment]
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    cost: Cost = field(default_factory=Free)
    folder: Path | None = None
    resume: bool = False
    errors: Literal["raise", "drop"] = "raise"
    policy: Policy = field(default_factory=AllowAll)
    secret_seed: int | None = None
    state_memory: int | None = None
    registry: dict[str, Any] = field(default_factory=dict)
    on_record: Callable[[dict[str, Any]], None] | None = None
    on_restore: Callable[[list[dict[str, Any]]], None] | None = None

    def __post_init__(self) -> None:
        if self.roster is None:
            others = dict.fromkeys(getattr(self.population, "others", {}), "party")
            self.roster = Roster(self.population.names, others=others)
        self.checkpoints = CheckpointStore(self.folder)
        self.ledger = Ledger(None if self.folder is None else self.folder / "ledger.jsonl")
        self.decisions = Decisions(None if self.folder is None else self.folder / "decisions.jsonl")
        self._known: set[str] = set()
        self.traffics: dict[str, Traffic] = {}  # of every scope and nested program, by slot
        watts = float(getattr(self.cost, "recharge", 0.0))
        self.batteries = Batteries(watts) if watts else None  # without, they lack what was spent

    def spent(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that each of these parties has spent so far, whoever asked."""
        return sum((t.meter.spent(positions) for t in self.traffics.values()), np.zeros(len(positions)))

    def lacking(self, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Joules that each of these parties' batteries lacks of being full; see ``Plan.lacking``."""
        return self.spent(positions) if self.batteries is None else self.batteries.lacking(positions, now)

    def note_secret_seed(self) -> None:
        """Say in the ledger, once, that secrets come from a seed."""
        if self.secret_seed is not None and not any(e["kind"] == SeededSecret.kind for e in self.ledger):
            self.ledger.append(SeededSecret(), "*", "world")

    def require_known(self, task: Task) -> None:
        """Refuse a task that no other process could find, whichever engine is asked: a program runs in every world or in none.

        Raises:
            ConfigError: it is neither registered nor at the top level of a module.
        """
        if task.name not in self._known:
            resolve(task.name, self.registry)
            self._known.add(task.name)
        if task.wraps is not None:
            self.require_known(task.wraps)

    def executor(self, *, vectorised: bool) -> Executor:
        """An executor for the islands of this world."""
        return Executor(self.roster, self.population, self.policy, vectorised, self.secret_seed)

    def host(self, *, vectorised: bool = False) -> Host:
        """The host of the islands of this world: an executor with state, journal and ledger."""
        journal = Journal(None if self.folder is None else self.folder / "journal.log")
        store = StateStore(self.folder, self.roster, self.state_memory)
        return Host(self.executor(vectorised=vectorised), store, self.ledger, journal)
