"""Scopes: where a program is, whom it may ask, what its requests are called, and what it has counted."""

from __future__ import annotations

from collections import Counter
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from .chain import Chain
from .clock import Free
from .errors import ConfigError
from .launch import is_live
from .live import LiveTraffic
from .meter import Meter
from .party import Parties, Party
from .request import Mail, Request
from .rng import Rng
from .task import Task
from .traffic import Traffic
from .tree import Tree

if TYPE_CHECKING:
    from .world import World

__all__ = ["Scope"]


class Scope:
    """A place in a program's tree of scopes; arguments and attributes are those of ``Federation``, which users hold."""

    def __init__(
        self,
        world: World,
        parties: Parties | None = None,
        slot: str = "main",
        hub: str = "server",
        *,
        family: dict[str, Any] | None = None,
    ) -> None:
        self.world = world
        self.parties = world.roster.all() if parties is None else parties
        self.slot = slot
        self.hub = hub
        self.meter = Meter()
        self.records: list[dict[str, Any]] = []
        kind = LiveTraffic if is_live(world) else Traffic
        self.traffic = world.traffics[slot] = kind(world, hub, self.meter)
        self.counts: Counter[str] = Counter()
        self.family: dict[str, Self] = {} if family is None else family
        self.home = slot
        self.homes: set[str] = set()
        self.nested = self.kept = False
        self.written: tuple[int, list[str]] = (0, [])
        self._labels: set[str] = set()

    @property
    def clock(self) -> Any:
        """Seconds since the job began: ``now()``, ``sleep_until(moment)``."""
        return self.world.clock

    @property
    def rng(self) -> Rng:
        """The program's own reproducible stream."""
        return Rng.of(self.world.seed).child(self.slot, "program")

    def where(self, role: str) -> Parties:
        """The parties of a role."""
        return self.world.roster.where(role)

    def party(self, name: str) -> Party:
        """The party of a name."""
        return self.world.roster.party(self.world.roster.position(name))

    def bytes(self) -> dict[str, int]:
        """Bytes and messages of this scope and everything below it."""
        total = self.meter.totals()
        for member in self.below():
            for name, value in member.meter.totals().items():
                total[name] += value
        return total

    def record(self, metrics: dict[str, Any]) -> None:
        """Write a record of metrics, stamped with the clock."""
        entry = {"slot": self.slot, "clock": self.clock.now(), **metrics}
        self.records.append(entry)
        if self.world.on_record is not None:
            self.world.on_record(entry)

    # ------------------------------------------------------------------ names of requests

    def _request(
        self,
        task: Task,
        message: Tree,
        at: Any = None,
        *,
        uplink: Chain | None = None,
        mail: Mail | None = None,
    ) -> Request:
        """Name a request by its path: scope, task and label. The label is given, or counts the task's requests in this scope."""
        if not isinstance(task, Task):
            raise ConfigError(f"{task!r} is not a task", remedy="decorate the function with @atoll.task")
        self.world.require_known(task)
        if at is None:
            turn = self.counts[task.name]
            label = str(turn)
            self.counts[task.name] += 1
        else:
            parts = at if isinstance(at, tuple | list) else (at,)
            turn = int(parts[0]) if parts and isinstance(parts[0], Integral) else 0
            label = "@" + "/".join(str(part) for part in parts)
            self._fresh(f"{task.name}/{label}")
        rng = Rng.of(self.world.seed).child(self.slot, task.name, label)
        chain = uplink or Chain()
        public = tuple(chain.public(rng.child("public"))) if chain else ()
        return Request(f"{self.slot}/{task.name}/{label}", task, message, self.home, rng.key, chain, public, mail, turn)

    def _fresh(self, label: str) -> None:
        """Refuse a label that was used: its request would be answered from the journal, with the same random numbers."""
        if label in self._labels:
            raise ConfigError(
                f"a second request is labelled {label!r}",
                where=self.slot,
                remedy="put the round into at=, or leave it out",
            )
        self._labels.add(label)

    # ------------------------------------------------------------------ the family

    def member(self, slot: str) -> Self:
        """The scope of a slot in this program's family, made if it is not there."""
        if slot not in self.family:
            self.family[slot] = type(self)(self.world, self.parties, slot, self.hub, family=self.family)
        return self.family[slot]

    def settle_at(self, parties: Parties, hub: str, home: str) -> None:
        """Say whom this scope asks, from where, and where their private state is kept."""
        self.parties, self.home = parties, home
        self.hub = self.traffic.hub = hub

    def observe(self) -> None:
        """What this scope asks is an observer's: in a simulation it takes no time, and devices neither fail nor tire of it."""
        self.traffic.cost = Free()

    def below(self) -> list[Self]:
        """Every scope and nested program inside this one, by slot."""
        return [self.family[slot] for slot in sorted(self.family) if slot.startswith(self.slot + "/")]

    def apart(self, top: Self) -> bool:
        """Whether this scope, or one between it and ``top``, is nested or keeps a checkpoint of its own."""
        between = [m for m in top.below() if m is self or self.slot.startswith(m.slot + "/")]
        return any(m.nested or m.kept for m in between)
