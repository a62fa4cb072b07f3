"""Scopes: a program's place, its parties, the names of its requests, and its counts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError
from ..execution.engine import is_live
from ..persistence.packed_rows import PackedRows
from ..requests.chain import Chain
from ..requests.island import Secret
from ..requests.party import Parties, Party
from ..requests.request import Mailboxes, Request
from ..requests.results import Free
from ..requests.task import Task
from ..time.meter import Meter
from .delivery import Delivery, LiveTraffic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..requests.results import Terms
    from ..world import World
    from .flight import Flight

__all__ = ["Labels", "MAIN", "Scope", "StopRun"]


class StopRun(Exception):  # noqa: N818 - a request, not an error
    """Raise it in a callback on a run's records to end the run after this record; its text is the reason."""


class Labels:
    """A set of labels. ``add`` says whether a label is new.

    The first number of a label, ``12`` in ``step/@12`` or ``step/@12/left``, joins the range of its neighbours; a million rounds in order are one range.
    """

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        self._others: set[str] = set()

    def add(self, label: str) -> bool:
        """Add a label; return whether it is new."""
        before, _, after = label.partition("@")
        number, _, rest = after.partition("/")
        # Text that a number is not written as, such as "01", is a label of its own. So is "1/" beside "1".
        if not number.isdecimal() or str(int(number)) != number or after == number + "/":
            new = label not in self._others
            self._others.add(label)
            return new
        return _add(*self._ranges.setdefault((before, rest), ([], [])), int(number))


def _add(starts: list[int], ends: list[int], number: int) -> bool:
    """Add a number to ranges, sorted, from starts to before ends; return whether it is new."""
    at = bisect_right(starts, number)
    if at and number < ends[at - 1]:
        return False
    joins_before, joins_after = bool(at) and ends[at - 1] == number, at < len(starts) and starts[at] == number + 1
    if joins_before and joins_after:
        ends[at - 1] = ends[at]
        del starts[at], ends[at]
    elif joins_before:
        ends[at - 1] = number + 1
    elif joins_after:
        starts[at] = number
    else:
        starts.insert(at, number)
        ends.insert(at, number + 1)
    return True


MAIN = "main"
"""The slot of the outermost program."""
_NO_STAGES = Chain()


class Scope:
    """A place in a program's tree of scopes; its arguments and attributes are those of ``Federation``, the class for users."""

    def __init__(
        self,
        world: World,
        parties: Parties | None = None,
        slot: str = MAIN,
        hub: str = "server",
        *,
        family: dict[str, Any] | None = None,
        traffic: Delivery | None = None,
    ) -> None:
        self.world = world
        self.parties = world.roster.all() if parties is None else parties
        self.slot = slot
        self.hub = hub
        self.records = PackedRows(folder=world.folder)
        if traffic is None:
            kind = LiveTraffic if self.live else Delivery
            traffic = world.traffics[slot] = kind(world, hub, Meter())
        self.traffic, self.meter = traffic, traffic.meter
        self.counts: Counter[str] = Counter()
        self.family: dict[str, Self] = {} if family is None else family
        self.home = slot
        self.homes: set[str] = set()
        self.nested = self.kept = self.opened = False
        self.running = world.running_at(slot)
        self.written: tuple[int, list[str]] = (0, [])
        self._labels = Labels()
        self._rule: Callable[[PackedRows], str | None] | None = None

    @property
    def live(self) -> bool:
        """Whether replies come unforetold: between real parties, on a real clock."""
        return is_live(self.world.engine, self.world.clock)

    @property
    def clock(self) -> Any:
        """Seconds since the job began: ``now()``, ``sleep_until(moment)``."""
        return self.world.clock

    @cached_property
    def rng(self) -> Rng:
        """The program's own reproducible stream."""
        return self._stream.child("program")

    def secret(self, *purpose: str | int) -> Secret:
        """The program's own secret stream for one purpose, such as the noise of a round: a resumed run gets the same, and nobody can compute it from the seed."""
        return self.world.secret("/".join(map(str, (self.slot, *purpose))))

    @cached_property
    def _stream(self) -> Rng:
        """The stream that all of this scope's are children of."""
        return Rng.of(self.world.seed).child(self.slot)

    def where(self, role: str) -> Parties:
        """The parties with a role."""
        return self.world.roster.where(role)

    def party(self, name: str) -> Party:
        """The party with a name."""
        return self.world.roster.party(self.world.roster.position(name))

    def bytes(self) -> dict[str, int]:
        """Bytes and messages of this scope and all scopes below it."""
        total = self.meter.totals()
        for member in self.below():
            for name, value in member.meter.totals().items():
                total[name] += value
        return total

    def record(self, metrics: dict[str, Any]) -> None:
        """Append a record of metrics, stamped with the clock and, unless the metrics have a ``round``, with its own number."""
        entry = {"slot": self.slot, "clock": self.clock.now(), "round": len(self.records) + 1, **metrics}
        self.records.append(entry)
        if "clamped" in metrics:
            self.world.clamped.pop(self.slot, None)
        if self.world.on_record is not None:
            try:
                self.world.on_record(entry)
            except StopRun as stop:
                self.world.asked = str(stop) or "a stop was requested"

    def announce(self, step: str, **facts: Any) -> None:
        """Say that the program has reached a step, such as ``"round_begins"``, to whoever hears it (`atoll.rounds.Hooks`).

        Args:
            step: a name, which is that of a method of ``Hooks``, or your own.
            facts: what to say of it.
        """
        if self.running.hear is not None:
            self.running.hear(step, facts)

    @property
    def ending(self) -> str | None:
        """Why the program should end now, or ``None``: a stop rule holds (see `ends_when`), or a stop was requested (see `StopRun`).

        Rules see only the records, so that they give the same answer after a resume. A requested stop is forgotten: a resumed run continues.
        """
        asked = self.world.asked or self.running.asked
        return asked or (None if self._rule is None else self._rule(self.records))

    def ends_when(self, rule: Callable[[PackedRows], str | None]) -> None:
        """Set the stop rule of this scope: a function of its records that returns why it is over, or ``None``."""
        self._rule = rule

    # ------------------------------------------------------------------ names of requests

    def _request(
        self,
        task: Task,
        message: Tree,
        at: Any = None,
        *,
        uplink: Chain | None = None,
        mail: Mailboxes | None = None,
        **more: Any,
    ) -> Request:
        """Name a request by its path: scope, task and label. The label is given, or counts the task's requests in this scope. ``more`` sets other attributes."""
        if not isinstance(task, Task):
            raise ConfigError(
                f"{task!r} is not a task", where=self.slot, remedy="decorate the function with @atoll.task"
            )
        task = self.world.bind_task(task, self.running.slot)
        if at is None:
            turn = self.counts[task.name]
            label = str(turn)
            self.counts[task.name] += 1
        else:
            parts = at if isinstance(at, tuple | list) else (at,)
            turn = int(parts[0]) if parts and isinstance(parts[0], Integral) else 0
            label = "@" + "/".join(str(part) for part in parts)
            self._fresh(f"{task.name}/{label}")
        rng = self._stream.child(task.name, label)
        chain = _NO_STAGES if uplink is None else uplink
        public = tuple(chain.public(rng.child("public"))) if chain else ()
        more.setdefault("turn", turn)
        made = Request(
            f"{self.slot}/{task.name}/{label}", task, message, self.home, rng.key, chain, public, mail, **more
        )
        if made.misfit is not None:
            raise made.misfit
        return made

    def _fresh(self, label: str) -> None:
        """Refuse a label that was used before: its request would be answered from the journal, with the same random numbers."""
        if not self._labels.add(label):
            raise ConfigError(
                f"the label {label!r} is used by a second request",
                where=self.slot,
                remedy="put the round into at=, or leave it out",
            )

    def _send(self, request: Request, parties: Parties, terms: Terms, push: str) -> Flight:
        """Put a request on its way.

        Raises:
            ConfigError: the parties are something else, such as a list of names.
        """
        if not isinstance(parties, Parties):
            raise ConfigError(
                f"parties={parties!r} is a {type(parties).__name__}",
                where=request.id,
                remedy='choose among fed.parties, such as fed.parties[:10] or fed.parties.named("client-0")',
            )
        return self.traffic.send(request, parties, down=terms.down, up=terms.up, deadline=terms.deadline, push=push)

    async def _close(self, flight: Flight, terms: Terms) -> NDArray[np.int64]:
        """Wait until a round closes; return the indices of the replies that are in. Late replies to drop are made nevertheless."""
        accepted = await self.traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self.traffic.run(flight, flight.cancelled)
        return accepted

    # ------------------------------------------------------------------ the family

    def member(self, slot: str) -> Self:
        """The scope of a slot in this program's family; it is made if it does not exist."""
        if slot not in self.family:
            self.family[slot] = type(self)(self.world, self.parties, slot, self.hub, family=self.family)
        return self.family[slot]

    def settle_at(self, parties: Parties, hub: str, home: str) -> None:
        """Set the parties of this scope, the hub that asks, and where their private state is kept."""
        self.parties, self.home = parties, home
        self.hub = self.traffic.hub = hub

    def observe(self) -> None:
        """Mark this scope as an observer: in a simulation its requests take no time, cause no failures and spend no energy."""
        self.traffic.cost = Free()

    def below(self) -> list[Self]:
        """All scopes and nested programs inside this one, by slot."""
        return [self.family[slot] for slot in sorted(self.family) if slot.startswith(self.slot + "/")]

    def apart(self, top: Self) -> bool:
        """Whether this scope, or one between it and ``top``, is nested or keeps its own checkpoints."""
        between = [m for m in top.below() if m is self or self.slot.startswith(m.slot + "/")]
        return any(m.nested or m.kept for m in between)
