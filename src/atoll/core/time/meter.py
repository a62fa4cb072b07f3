"""Meters: the bytes on each link in both directions, the outcomes of requests, and the energy that devices spend.

What the batteries of devices lack: what requests took from each, minus what it has recharged since.

A battery that lacks ``d`` joules and recharges with ``watts`` lacks ``max(0, d - watts * t)`` after ``t`` seconds. The maximum with 0 cannot be computed
from the total energy spent. So the world stores, for each device, what it lacked at its last draw, and when that was. A query costs as
much as the number of devices asked about.

A scope may return to its own checkpoint while others do not. So each scope also keeps its draws since the last moment before which no scope can
return, and a resume repeats them as time reaches them: a program that is replayed sees what it saw before. Such a moment is each checkpoint of the
outermost program that covers all other scopes, as those of trainings do.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "Batteries",
    "Draw",
    "Effort",
    "Fate",
    "Key",
    "Meter",
    "Said",
    "Spender",
    "Tally",
    "Way",
    "cpu_seconds",
    "started_seconds",
]


# ------------------------------------------------------------------ measure whether a process works: the processor time that it and its descendants have used


_MOVED = 1e-3
"""Seconds of processor time between two looks that count as work, not waiting."""


class _Process(NamedTuple):
    """One line of /proc; times in ticks."""

    pid: int
    parent: int
    group: int
    own: int
    ended: int  # of its children that have ended and were waited for


def cpu_seconds(group: int) -> float:
    """Return the processor seconds of all processes of a group, including children already waited for; 0 without /proc."""
    return _seconds(sum(one.own + one.ended for one in _processes() if one.group == group))


def started_seconds() -> float:
    """Return the processor seconds of this process's descendants and, if it or its parent leads its process group, of everyone else in the group."""
    me = os.getpid()
    found = {one.pid: one for one in _processes()}
    if me not in found:
        return 0.0
    group = found[me].group
    # A guardian may lead it, whose children orphans become; in a sandbox the group's leader is outside, which is 0.
    led = group in (me, found[me].parent, 0)
    mine = {pid for pid, one in found.items() if led and one.group == group} | {me}
    more = mine
    while more:
        more = {pid for pid, one in found.items() if one.parent in more} - mine
        mine |= more
    return _seconds(sum(found[pid].own + found[pid].ended for pid in mine) - found[me].own)


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def _processes() -> Iterator[_Process]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # proc(5): after the name in brackets, fields 4 and 5 are parent and group, and 14 to 17 are user and system time.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            user, system, ended, ended_system = (int(fields[i]) for i in (11, 12, 13, 14))
            yield _Process(int(path.parent.name), int(fields[1]), int(fields[2]), user + system, ended + ended_system)


class Effort:
    """Tell, look by look, whether a process has worked since the last look; by default this process.

    Work of its descendants counts too: a task may start another program and wait for it.

    Args:
        own: returns the seconds of processor time of the process.
        started: returns the seconds of what the process has started; None if ``own`` includes them. Systems count in
            steps of 10 ms, and an idle process uses such a step now and then. So only more than 1 ms a look, averaged
            since the last work, counts as work.
    """

    def __init__(
        self,
        own: Callable[[], float] = time.process_time,
        started: Callable[[], float] | None = started_seconds,
    ) -> None:
        self._own = own
        self._started = started
        self._before = own()
        self._others: float | None = None
        self._looks = 0

    def moved(self) -> bool:
        """Tell whether there was work since the last look."""
        now = self._own()
        moved, self._before = now - self._before > _MOVED, now
        if moved or self._started is None:
            self._others = None
            return moved
        moved = self._others_moved(self._started())
        self._before = self._own()  # measuring takes processor time too
        return moved

    def _others_moved(self, now: float) -> bool:
        self._looks += 1
        if self._others is not None and now - self._others <= _MOVED * self._looks and now >= self._others:
            return False
        moved = self._others is not None and now > self._others
        self._others, self._looks = now, 0
        return moved


# ------------------------------------------------------------------ meters
#
# Meters: the bytes on each link in both directions, the outcomes of requests, and the energy that devices spend.


Key = tuple[str, str]
"""A hub, and the kind of count on its links."""

_Column = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64] | None"]
"""Positions, the amount of each, and how often it was counted (``None``: once each)."""

_MOST = 1024
"""Maximum number of columns of one key before they are added up, so that memory grows with the parties, not with the requests."""


class Tally:
    """Integers by key and party: amounts, and how often something was counted."""

    def __init__(self) -> None:
        self._columns: dict[Key, list[_Column]] = defaultdict(list)

    def add(
        self,
        key: Key,
        positions: NDArray[np.int64],
        amounts: NDArray[np.int64],
        times: NDArray[np.int64] | None = None,
    ) -> None:
        """Count.

        Args:
            key: hub and kind.
            positions: positions of the parties; a position that occurs twice counts twice.
            amounts: the amount of each.
            times: how often each is counted; ``None`` is once.
        """
        columns = self._columns[key]
        columns.append((np.asarray(positions), amounts, times))
        if len(columns) > _MOST:
            columns[:] = [_compact(columns)]

    def of(self, key: Key) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The parties, ascending, with the sum of their amounts and how often they were counted, ``(parties,)`` each."""
        columns = self._columns.get(key)
        if not columns:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none
        columns[:] = [_compact(columns)]
        return _compact(columns)

    def keys(self, kind: str, hub: str | None = None) -> list[Key]:
        """Keys of a kind with at least one count, of one hub or of all."""
        return [key for key, columns in self._columns.items() if columns and key[1] == kind and hub in (None, key[0])]

    def absorb(self, other: Tally) -> None:
        """Add another tally to this one."""
        for key, columns in other._columns.items():
            self._columns[key].extend(columns)

    def items(self) -> Iterator[tuple[Key, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Each key with the result of `of`."""
        for key in list(self._columns):
            yield key, *self.of(key)

    def save(self) -> list[dict[str, Any]]:
        """The tally as trees, for a checkpoint."""
        return [
            {"hub": hub, "direction": kind, "positions": positions, "bytes": amounts, "times": times}
            for (hub, kind), positions, amounts, times in self.items()
        ]

    @classmethod
    def load(cls, saved: list[dict[str, Any]]) -> Tally:
        """Rebuild the tally from a checkpoint."""
        tally = cls()
        for link in saved:
            column = (np.array(link["positions"]), np.array(link["bytes"]), np.array(link["times"]))
            tally._columns[link["hub"], link["direction"]] = [column]
        return tally


def _compact(columns: list[_Column]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    if len(columns) == 1 and columns[0][2] is not None and (np.diff(columns[0][0]) > 0).all():
        return columns[0]  # type: ignore[return-value]
    positions = np.concatenate([c[0] for c in columns])
    amounts = np.concatenate([c[1] for c in columns])
    times = np.concatenate([np.ones(len(c[0]), dtype=np.int64) if c[2] is None else c[2] for c in columns])
    unique, inverse = np.unique(positions, return_inverse=True)
    total, often = np.zeros(len(unique), dtype=np.int64), np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, amounts)
    np.add.at(often, inverse, times)
    return unique, total, often


Fate = Literal["crashed", "called_off", "refused"]
"""Why a request has no usable reply: its party was lost; its reply was no longer needed; or its reply was kept out of a sum because it was not
finite or the task raised."""

Way = Literal["down", "up"]
"""The direction of a message on a link: ``"down"`` to the party, ``"up"`` from it."""


class Said(NamedTuple):
    """The messages of one role of a session to another.

    Attributes:
        messages: number of messages.
        nbytes: their encoded size together.
        direct: whether they used a link between the two parties; else the hub relayed them.
    """

    messages: int = 0
    nbytes: int = 0
    direct: bool = False

    def and_one(self, nbytes: int, *, direct: bool) -> Said:
        """Add one message; two roles use the same way, direct or through the hub, for a whole session."""
        return Said(self.messages + 1, self.nbytes + nbytes, direct)


_COUNTED = {"asked": "down", "answered": "up", "crashed": "crashed", "called_off": "called_off", "refused": "refused"}
_KINDS = {"down": ("down", "talk down", "direct down"), "up": ("up", "talk up", "direct up")}
_SUMMED = {"bytes_down": _KINDS["down"], "bytes_up": _KINDS["up"], "energy": ("energy",)}
_TOTALS = (
    "bytes_down", "bytes_up", "bytes_relayed", "bytes_between",
    "messages_down", "messages_up", "messages_relayed", "messages_between",
)  # fmt: skip
_totals_of = attrgetter(*_TOTALS)


class Meter:
    """Bytes and messages by link, outcomes of requests, and energy by device.

    A link joins a hub and a party; ``down`` leads to the party. Two parties of a session may have their own link. Each byte counts on
    every link that it crosses: a letter or a relayed message goes up from its sender and down to its recipient. See "Bytes" in the concept page
    *The waist* for what counts.

    Totals are kept up to date; the single links of a cohort are kept as columns and added up on request. Energy is counted in whole
    microjoules, so that sums do not depend on their order.

    Attributes:
        bytes_down: bytes to parties; ``bytes_up``, ``messages_down`` and ``messages_up`` likewise.
        bytes_relayed: the part of ``bytes_down`` that one party wrote to another: letters, and messages of session roles through the hub.
        bytes_between: bytes on direct links between parties, counted neither in ``bytes_down`` nor in ``bytes_up``.
        messages_relayed: letters and messages in ``bytes_relayed``.
        messages_between: messages in ``bytes_between``.
        crashed: requests during which the party was lost.
    """

    def __init__(self) -> None:
        self.bytes_down = 0
        self.bytes_up = 0
        self.bytes_relayed = 0
        self.bytes_between = 0
        self.messages_down = 0
        self.messages_up = 0
        self.messages_relayed = 0
        self.messages_between = 0
        self._tally = Tally()
        self._microjoules: int | None = None
        self.crashed = 0

    def down(self, hub: str, positions: NDArray[np.int64], nbytes: int | NDArray[np.int64]) -> None:
        """Count a message to each of these parties, of one size or one size each."""
        if isinstance(nbytes, np.ndarray):
            each, total = nbytes, int(nbytes.sum())
        else:
            each, total = np.full(len(positions), nbytes, dtype=np.int64), nbytes * len(positions)
        self.bytes_down += total
        self.messages_down += len(positions)
        self._tally.add((hub, "down"), positions, each)

    def up(self, hub: str, positions: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        """Count a reply from each of these parties."""
        self.bytes_up += int(nbytes.sum())
        self.messages_up += len(positions)
        self._tally.add((hub, "up"), positions, nbytes)

    def control(self, hub: str, way: Way, positions: NDArray[np.int64], nbytes: int, times: int = 1) -> None:
        """Count protocol messages that are neither requests nor replies: a signal, a count, a message of a role. They do not count as asked or answered.

        Args:
            hub: hub of the link.
            way: ``"down"`` or ``"up"``.
            positions: positions of the parties.
            nbytes: size of each message.
            times: number of messages a party.
        """
        n = len(positions)
        self._talk(hub, f"talk {way}", positions, nbytes * times, times)
        for name, value in ((f"bytes_{way}", nbytes * times * n), (f"messages_{way}", times * n)):
            setattr(self, name, getattr(self, name) + value)

    def _talk(self, hub: str, kind: str, positions: NDArray[np.int64], size: int, times: int) -> None:
        n = len(positions)
        self._tally.add((hub, kind), positions, np.full(n, size, dtype=np.int64), np.full(n, times, dtype=np.int64))

    def count_relayed(self, nbytes: int, messages: int) -> None:
        """Count the part of the traffic down that one party wrote to another."""
        self.bytes_relayed += nbytes
        self.messages_relayed += messages

    def between(self, said: Said, source: tuple[str, int], target: tuple[str, int], hub: str) -> None:
        """Count the messages of one role of a session to another.

        Args:
            said: their number, size and way.
            source: name and position of the sending party.
            target: name and position of the receiving party.
            hub: relays messages that do not go directly.
        """
        (speaker, here), (hearer, there) = source, target
        heard, spoke = np.array([there], dtype=np.int64), np.array([here], dtype=np.int64)
        if said.direct:
            self.bytes_between += said.nbytes
            self.messages_between += said.messages
            self._talk(speaker, "direct down", heard, said.nbytes, said.messages)
            self._talk(hearer, "direct up", spoke, said.nbytes, said.messages)
            return
        for way, party in (("up", spoke), ("down", heard)):
            self._talk(hub, f"talk {way}", party, said.nbytes, said.messages)
            for unit, value in (("bytes", said.nbytes), ("messages", said.messages)):
                name = f"{unit}_{way}"
                setattr(self, name, getattr(self, name) + value)
        self.count_relayed(said.nbytes, said.messages)

    def count_ended(self, hub: str, fate: Fate, positions: NDArray[np.int64]) -> None:
        """Count a request to each of these parties that will have no usable reply."""
        self.crashed += len(positions) if fate == "crashed" else 0
        if len(positions):
            self._tally.add((hub, fate), positions, np.zeros(len(positions), dtype=np.int64))

    def energy(self, hub: str, positions: NDArray[np.int64], joules: NDArray[np.float64]) -> None:
        """Count what each of these devices spends on a request; negative for a credit."""
        each = np.rint(joules * 1e6).astype(np.int64)
        self._microjoules = (self._microjoules or 0) + int(each.sum())
        self._tally.add((hub, "energy"), positions, each)

    @property
    def joules(self) -> float | None:
        """What all devices have spent so far on requests of all hubs; ``None`` if energy is not counted."""
        return None if self._microjoules is None else self._microjoules / 1e6

    def spent(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that each of these devices has spent so far, on requests of all hubs."""
        total = np.zeros(len(positions), dtype=np.int64)
        for key in self._tally.keys("energy"):
            known, amount, _ = self._tally.of(key)
            place = np.minimum(np.searchsorted(known, positions), len(known) - 1)
            total += np.where(known[place] == positions, amount[place], 0) if len(known) else 0
        return total / 1e6

    def absorb(self, other: Meter) -> None:
        """Add the meter of a nested program that has ended."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)
        self._tally.absorb(other._tally)
        self.crashed += other.crashed
        if other._microjoules is not None:
            self._microjoules = (self._microjoules or 0) + other._microjoules

    def links(
        self, hub: str = "server", way: Way = "down", *, count: Literal["bytes", "messages"] = "bytes"
    ) -> dict[int, int]:
        """Traffic on the links of one hub in one direction, by the position of the party at the other end.

        A party of a session with its own links to other parties is their hub: its ``"down"`` leads to the others.

        Args:
            hub: name of the hub.
            way: ``"down"`` to the parties or ``"up"`` from them.
            count: bytes or messages.
        """
        which, found = (1 if count == "bytes" else 2), Counter[int]()
        for kind in _KINDS[way]:
            row = self._tally.of((hub, kind))
            found.update(dict(zip(row[0].tolist(), row[which].tolist(), strict=True)))
        return dict(sorted(found.items()))

    def parties(self, hub: str | None = None) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Every party that received a request, and what it was asked, did and spent. Memory grows with these parties only.

        Args:
            hub: only requests of this hub; by default of all.

        Returns:
            Their positions, ascending, and columns with one entry each: ``asked`` and ``answered`` (requests); requests that ``crashed`` (a simulation knows
            it when it asks, even if the device is called off earlier), were ``called_off`` or ``refused`` (see ``Fate``); ``bytes_down``, ``bytes_up``; and
            ``energy`` (joules).
        """
        kinds = dict.fromkeys((*_COUNTED.values(), *(kind for row in _SUMMED.values() for kind in row)))
        found = {kind: [self._tally.of(key) for key in self._tally.keys(kind, hub)] for kind in kinds}
        none = np.zeros(0, dtype=np.int64)
        met = np.unique(np.concatenate([none, *(known for rows in found.values() for known, _, _ in rows)]))
        columns: dict[str, NDArray[Any]] = {}
        summed = [(2, name, (kind,)) for name, kind in _COUNTED.items()]
        for which, name, of in [*summed, *((1, name, of) for name, of in _SUMMED.items())]:
            columns[name] = np.zeros(len(met), dtype=np.int64)
            for row in (row for kind in of for row in found[kind]):
                columns[name][np.searchsorted(met, row[0])] += row[which]
        return met, {**columns, "energy": columns["energy"] / 1e6}

    def devices(self, population: int, hub: str | None = None) -> dict[str, NDArray[Any]]:
        """What each device was asked and spent, as columns with one entry a position.

        Args:
            population: number of devices; parties at later positions are left out.
            hub: only requests of this hub; by default of all.

        Returns:
            The columns of ``parties``.
        """
        met, columns = self.parties(hub)
        keep = met < population
        whole = {name: np.zeros(population, dtype=column.dtype) for name, column in columns.items()}
        for name, column in columns.items():
            whole[name][met[keep]] = column[keep]
        return whole

    def totals(self) -> dict[str, int]:
        """The totals by name."""
        return dict(zip(_TOTALS, _totals_of(self), strict=True))

    def save(self) -> dict[str, Any]:
        """The meter as a tree, for a checkpoint."""
        return {"totals": self.totals(), "links": self._tally.save()}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Meter:
        """Rebuild the meter from a checkpoint."""
        meter = cls()
        for name, value in saved["totals"].items():
            setattr(meter, name, int(value))
        meter._tally = Tally.load(saved["links"])
        for key in meter._tally.keys("energy"):
            meter._microjoules = (meter._microjoules or 0) + int(meter._tally.of(key)[1].sum())
        meter.crashed = sum(int(meter._tally.of(key)[2].sum()) for key in meter._tally.keys("crashed"))
        return meter


class Draw(NamedTuple):
    """The draws of one request: time, positions, and whole microjoules of each; negative for a credit."""

    moment: float
    positions: NDArray[np.int64]
    microjoules: NDArray[np.int64]

    @classmethod
    def of(cls, moment: float, positions: NDArray[np.int64], joules: NDArray[np.float64], before: Any = 0.0) -> Draw:
        """The draws of the devices that spend energy; ``before`` is the part that was charged earlier."""
        each = (np.rint(joules * 1e6) - np.rint(before * 1e6)).astype(np.int64)
        some = each != 0
        return cls(moment, positions[some], each[some])


class Spender(Protocol):
    """Whoever sends requests to devices.

    Attributes:
        meter: what they have cost.
        draws: what they took from batteries since all was last settled.
    """

    meter: Meter
    draws: list[Draw]


@dataclass
class Batteries:
    """What each battery lacks.

    Attributes:
        watts: recharging power of all batteries, all the time.
        settled: the state at the last moment before which no scope can return, as it is saved: positions, microjoules, moments.
    """

    watts: float
    settled: dict[str, Any] = field(default_factory=dict)
    _lacks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _ahead: deque[Draw] = field(default_factory=deque)

    def lacking(self, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Joules that each of these batteries lacks of being full."""
        self._reach(now)
        self._grow(positions)
        return self._now(positions, now) / 1e6

    def draw(self, draw: Draw) -> None:
        """Take energy from batteries, now."""
        self._reach(draw.moment)
        self._take(draw)

    def restart(self, settled: dict[str, Any], draws: Iterable[Draw]) -> None:
        """Start again from the settled state; later draws are repeated when time reaches them."""
        self.settled = settled
        self._lacks, self._at = np.zeros(0, dtype=np.int64), np.zeros(0)
        if settled:
            positions = np.array(settled["positions"], dtype=np.int64)
            self._grow(positions)
            self._lacks[positions], self._at[positions] = settled["microjoules"], settled["moments"]
        self._ahead = deque(sorted(draws, key=lambda draw: draw.moment))

    def settle(self, now: float) -> dict[str, Any]:
        """Settle the state as of now, and return it as it is saved."""
        self._reach(now)
        positions = np.flatnonzero(self._lacks)
        return {"positions": positions, "microjoules": self._lacks[positions], "moments": self._at[positions]}

    def _now(self, positions: NDArray[np.int64], now: float) -> NDArray[np.int64]:
        taken = np.rint(self.watts * np.maximum(0.0, now - self._at[positions]) * 1e6)
        return np.maximum(0.0, self._lacks[positions] - taken).astype(np.int64)

    def _take(self, draw: Draw) -> None:
        self._grow(draw.positions)
        self._lacks[draw.positions] = np.maximum(0, self._now(draw.positions, draw.moment) + draw.microjoules)
        self._at[draw.positions] = draw.moment

    def _reach(self, now: float) -> None:
        while self._ahead and self._ahead[0].moment <= now:
            self._take(self._ahead.popleft())

    def _grow(self, positions: NDArray[np.int64]) -> None:
        """Make room for these positions: pages that are never written take no memory."""
        size = int(positions.max(initial=-1)) + 1
        if size > len(self._lacks):
            more = max(size, 2 * len(self._lacks)) - len(self._lacks)
            self._lacks = np.concatenate([self._lacks, np.zeros(more, dtype=np.int64)])
            self._at = np.concatenate([self._at, np.zeros(more)])
