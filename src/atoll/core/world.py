"""A world: everything that a federation runs in: parties, data, engine, time and folder."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .errors import ConfigError
from .event import Event, Ledger, LettersUnencrypted, SeededSecret
from .execution.executor import Executor
from .execution.host import Host, Journal
from .job import declare_jobs, register_prepared
from .persistence.checkpoint import CheckpointStore, Decisions
from .persistence.files import write_bytes
from .persistence.named_results import NamedResults
from .persistence.state_table import StateStore
from .requests.cohort import Population
from .requests.island import Secret
from .requests.party import Roster
from .requests.policy import AllowAll, Policies, check_policies
from .requests.request import Mailboxes
from .requests.results import Cost, Free
from .requests.task import Task, resolve, tasks_of
from .sealing import DerivedKeys, RealSealing, Record, Sealing, VirtualSealing
from .sealing.hpke import KEY
from .time.clock import Clock
from .time.meter import Batteries, Spender
from .validation import require_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .execution.engine import Engine
    from .job import InnerJob, Prepared

__all__ = ["RunningJob", "World"]


@dataclass
class RunningJob:
    """What a job that runs in a world keeps apart from the others: the program itself, or one that it runs in a scope.

    Attributes:
        slot: slot of its scope; empty for the program itself.
        asked: why it should end, once somebody asked for it.
        hear: learns the steps that it announces.
    """

    slot: str = ""
    asked: str | None = None
    hear: Callable[[str, dict[str, Any]], None] | None = None


@dataclass
class World:
    """Everything that a program runs in.

    Attributes:
        population: the islands' data.
        engine: the engine that runs tasks.
        roster: all parties; by default only the population.
        seed: the seed of every reproducible stream.
        clock: virtual or real.
        cost: the model of devices and links; by default nothing takes time.
        folder: folder of checkpoints, journals and the privacy ledger; ``None`` keeps them in memory.
        resume: continue the run in the folder.
        errors: whether a task that raises stops the program (``"raise"``) or its party counts as silent (``"drop"``).
        policy: the rule for what may leave the islands: one for all, or a dict of policies by party name.
        secret_seed: makes the islands' secrets reproducible, which voids every guarantee.
        sealing: whether letters between parties are encrypted (``"real"``), or only hidden from the program behind the API (``"virtual"``), which counts
            the same bytes and is enough if all parties are in one process. The ledger records ``"virtual"``.
        state_memory: bytes of memory for the parties' private states where tasks run; the rest goes to memory-mapped files
            in the folder (or the system's temporary one), with the same results. ``None`` is a quarter of this machine's memory.
        spends: the ledger of privacy events; by default one of this world alone, in the folder. A ledger that outlives runs has a job's name of its own.
        results: folder of the named results that stay at parties; by default ``results`` in the folder. Several runs may share one.
        registry: tasks and other objects that a program registered by name.
        on_record: called with each record of metrics; raise ``StopRun`` in it to end the program.
        on_restore: called with the records of the checkpoint that a resumed run continues from; later records are discarded.
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
    policy: Policies = field(default_factory=AllowAll)
    secret_seed: int | None = None
    sealing: Literal["virtual", "real"] = "virtual"
    state_memory: int | None = None
    results: Path | None = None
    spends: Ledger | None = None
    registry: dict[str, Any] = field(default_factory=dict)
    on_record: Callable[[dict[str, Any]], None] | None = None
    on_restore: Callable[[Sequence[dict[str, Any]]], None] | None = None

    def __post_init__(self) -> None:
        require_words(self)
        check_policies(self.policy)
        if self.roster is None:
            others = dict.fromkeys(getattr(self.population, "others", {}), "party")
            self.roster = Roster(self.population.names, others=others)
        for name in self.policy if isinstance(self.policy, Mapping) else ():
            self.roster.position(name)  # a policy for an unknown party would protect nothing
        self.checkpoints = CheckpointStore(self.folder)
        own = None if self.folder is None else self.folder / "ledger.jsonl"
        self.ledger = Ledger(own) if self.spends is None else self.spends
        if self.ledger.job:  # a name for everybody of this world means nobody in a ledger of several
            self.ledger.everyone = tuple(self.population.names)
        self.decisions = Decisions(None if self.folder is None else self.folder / "decisions.jsonl")
        self._known: set[str] = set()
        self.asked: str | None = None  # why every job here should end, once requested
        self.running = {"": RunningJob()}  # the jobs that run here, by slot
        self.jobs: dict[str, InnerJob] = {}  # those that the program declares, prepared, by slot
        self.clamped: dict[
            str, tuple[int, int]
        ] = {}  # numbers that a reducer's words cut off, and all, by slot; until a record says so
        self._sealing: Sealing | None = None
        self._secret_key: bytes | None = None
        self._noted: set[type[Event]] = set()
        self.reducers: dict[str, dict[str, Any]] = {}  # what lasting reducers know, by the slot of their parties' state
        self.traffics: dict[str, Spender] = {}  # of all scopes and nested programs, by slot
        watts = float(getattr(self.cost, "recharge", 0.0))
        self.batteries = Batteries(watts) if watts else None  # without recharging, a battery lacks what was spent

    def spent(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that each of these parties has spent so far, over all requests."""
        return sum((t.meter.spent(positions) for t in self.traffics.values()), np.zeros(len(positions)))

    def lacking(self, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Joules that each of these parties' batteries lacks of being full; see ``Plan.lacking``."""
        return self.spent(positions) if self.batteries is None else self.batteries.lacking(positions, now)

    def note_secret_seed(self) -> None:
        """Record in the ledger, once, that secrets come from a seed."""
        if self.secret_seed is not None:
            self.note(SeededSecret)

    def note(self, kind: type[Event]) -> None:
        """Record in the ledger, once, an event that concerns the whole world."""
        if kind not in self._noted:
            self._noted.add(kind)
            if not _noted(self.ledger, kind):
                self.ledger.append(kind(), "*", "world")

    def note_letters(self, mail: Mailboxes) -> None:
        """Record in the ledger, once, that only the API hid letters."""
        if LettersUnencrypted not in self._noted and not mail.encrypted:
            self.note(LettersUnencrypted)

    def seals(self) -> Sealing:
        """The sealing of this world's letters.

        Real keys come from one secret of the world, stored in its folder, so that a resumed run can open the letters of its checkpoint.
        """
        if self._sealing is None:
            self._sealing = VirtualSealing() if self.sealing == "virtual" else RealSealing(self._keys(), "simulation")
        return self._sealing

    def _keys(self) -> DerivedKeys:
        if self.secret_seed is not None:
            return DerivedKeys(Secret(self.secret_seed).bytes(KEY))
        return DerivedKeys(self._kept_key("letters.key"))

    def _kept_key(self, name: str) -> bytes:
        """A secret key of this world, the same whenever the run in its folder resumes."""
        if self.folder is None:
            return Secret().bytes(KEY)
        path = self.folder / name
        if not path.exists():
            write_bytes(path, Secret().bytes(KEY), private=True)
        return path.read_bytes()

    def secret(self, purpose: str) -> Secret:
        """The secret stream of the place where the program runs, for one purpose: a keyed hash of its name.

        Nobody can compute it from the run's seed. A resumed run gets the same stream, so that a repeated round draws what it drew before; a new run
        in the same folder gets another (`renew_secret`).
        """
        if self._secret_key is None:
            seeded = self.secret_seed is not None
            self._secret_key = Secret(self.secret_seed).bytes(KEY) if seeded else self._kept_key("server.key")
        return Secret(hashlib.blake2b(purpose.encode(), key=self._secret_key, digest_size=KEY).digest())

    def renew_secret(self) -> None:
        """Forget the key of ``secret``: a new run begins."""
        self._secret_key = None
        if self.folder is not None:
            (self.folder / "server.key").unlink(missing_ok=True)

    def running_at(self, slot: str) -> RunningJob:
        """The job that a slot is part of: the innermost one."""
        while len(self.running) > 1 and slot:
            if slot in self.running:
                return self.running[slot]
            slot = slot.rpartition("/")[0]
        return self.running[""]

    def install(self, ready: Prepared, slot: str = "") -> None:
        """Make the tasks of a prepared job known by address, and the jobs inside it.

        Args:
            ready: the job.
            slot: slot of its scope; empty for the outermost.
        """
        register_prepared(self.registry, ready, slot)
        declare_jobs(self.jobs, ready, slot)
        self._known.clear()

    def bind_task(self, task: Task, owner: str) -> Task:
        """Return a task as other processes find it: that of the object that it is bound to, of those of the job that asks.

        A task that another process could not find is refused with any engine, so that a program runs in every world or in none.

        Args:
            task: the task.
            owner: slot of the job that asks; see ``RunningJob``.

        Raises:
            ConfigError: the task is neither the job's own nor at the top level of a module, or nobody can say which object's it is.
        """
        if (known := f"{task.name}@{owner}") in self._known:
            return task
        found = tasks_of(self.registry, task.name, owner)
        if len(found) > 1:
            found = [one for one in found if one.run == task.run]
            if not found:
                raise ConfigError(
                    f"several objects of this program have a task {task.name!r}, and the one that is asked for is of none of them",
                    remedy='run each job in a scope of its own: await fed.run(job, fed.parties, scope="a")',
                )
            return replace(task, owner=found[0].owner)
        if found and found[0].owner:
            return replace(task, owner=found[0].owner)
        if not found:
            resolve(task.name, {} if owner else self.registry)
        self._known.add(known)
        return task

    def executor(self, *, vectorised: bool) -> Executor:
        """Make an executor for the islands of this world."""
        where = self.results or (None if self.folder is None else self.folder / "results")
        named = NamedResults(where)
        return Executor(
            self.roster, self.population, self.policy, vectorised, self.secret_seed, self.seals(), named, record=self.record
        )  # fmt: skip

    @functools.cached_property
    def record(self) -> Record:
        """What the parties of this world have promised."""
        virtual = self.folder is None or self.sealing == "virtual"
        return Record(None if virtual or self.folder is None else self.folder / "record.log")

    def renew_record(self) -> None:
        """Begin a new run: its requests repeat the names of earlier ones."""
        if "record" in self.__dict__ or (self.folder is not None and (self.folder / "record.log").exists()):
            path = self.record.path
            if path is not None:
                path.unlink()
            del self.__dict__["record"]

    def host(self, *, vectorised: bool = False) -> Host:
        """Make the host of this world's islands: an executor with state, journal and ledger."""
        journal = Journal(None if self.folder is None else self.folder / "journal.log")
        store = StateStore(self.folder, self.roster, self.state_memory)
        return Host(replace(self.executor(vectorised=vectorised), near=True), store, self.ledger, journal)


def _noted(ledger: Ledger, kind: type[Event]) -> bool:
    """Whether a ledger has an event of this kind."""
    return any(entry["kind"] == kind.kind and entry.get("job", "") == ledger.job for entry in ledger)
