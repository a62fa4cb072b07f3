"""Requests in flight, as columns, and their arrivals.

No object is created per client. A flight stores when each party's reply arrives. The work itself is done when an arrival is first used, for
all arrivals of the same work in one block, and never for a reply that will not be used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from ..requests.party import Parties
from ..requests.request import Mailboxes, PartialSum, Reply, Request
from ..requests.results import Spending
from ..requests.task import Task
from ..requests.wire import pack_folded, unpack_folded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..execution.engine import Launch
    from ..requests.party import Roster

__all__ = ["Arrivals", "Flight", "Handle", "by_flight", "flights_of", "saved_flights"]


@dataclass(eq=False)
class Flight:
    """One ``send``.

    Attributes:
        request: the request.
        parties: the parties that were asked.
        arrives: clock time of each reply, ``inf`` for a crash.
        fraction: share of the work that each party will have done.
        version: a number that the program gives, such as the round of the base model.
        sent: clock time of sending.
        down: bytes sent, over all parties.
        open: replies still in flight.
        waiting: replies that have arrived and were not read, combined or cancelled.
        lost: clock time at which the link noticed a crash, ``inf`` without one.
        cancelled: indices of replies given up when the round closed.
        dropped: indices of late replies that are not used, though their work is done.
        up: bytes received.
        replies: replies computed so far, by index.
        energy: joules that each device spends, if the model of devices counts energy.
        reason: why no reply arrives; see ``Outcomes``.
        last_left: the last result of ``left``.
        ahead: whether the first use runs everything that will arrive, in one block.
        kept: the results of such a block, by index, until they are used; ``None`` before it has run.
        launch: the work under way between real parties, which can be called off.
        spending: how ``energy`` is spent, if the model of devices counts it.
        credit: called with indices of parties that are called off: energy that they will not spend is credited.
        unheard: called with indices of replies that would have arrived but will not be used.
    """

    request: Request
    parties: Parties
    arrives: NDArray[np.float64]
    fraction: NDArray[np.float64]
    version: int
    sent: float
    down: int
    open: NDArray[np.bool_]
    waiting: NDArray[np.bool_]
    lost: NDArray[np.float64]
    cancelled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    up: int = 0
    replies: dict[int, Reply] = field(default_factory=dict)
    energy: NDArray[np.float64] | None = None
    reason: NDArray[np.int8] | None = None
    last_left: NDArray[np.int64] | None = field(default=None, repr=False)
    ahead: bool = False
    kept: dict[int, PartialSum] | None = None
    launch: Launch | None = field(default=None, repr=False)
    spending: Spending | None = field(default=None, repr=False)
    credit: Callable[[Flight, NDArray[np.int64]], None] | None = field(default=None, repr=False)
    unheard: Callable[[Flight, NDArray[np.int64]], None] | None = field(default=None, repr=False)

    @property
    def foretold(self) -> bool:
        """Whether ``arrives`` and ``lost`` are known from the start; between real parties they fill as replies arrive and parties are lost."""
        return self.launch is None

    @property
    def alive(self) -> bool:
        """Whether anything of it can still be used."""
        return bool(self.open.any() or self.waiting.any())

    def falling(self, now: float) -> bool:
        """Whether a device still works towards a crash, so that calling it off could save energy."""
        return self.spending is not None and bool(
            (self.spending.ends[~np.isfinite(self.arrives)] > now - self.sent).any()
        )

    def use(self, which: NDArray[np.int64]) -> None:
        """Mark arrivals as used, once.

        Raises:
            ConfigError: one of them was read, combined or cancelled before.
        """
        used = which[~self.waiting[which]]
        if len(used):
            raise ConfigError(
                f"the reply of {self.parties[int(used[0])].name} to {self.request.id} was read, combined or cancelled before",
                remedy="use each arrival once",
            )
        self.waiting[which] = False

    def due(self) -> NDArray[np.float64]:
        """Arrival times of the replies in flight."""
        return self.arrives[self.left()]

    def left(self) -> NDArray[np.int64]:
        """Indices of the replies in flight, ascending. Except after ``Arrivals.until`` they only become fewer, so the last result limits the search."""
        before = np.flatnonzero(self.open) if self.last_left is None else self.last_left[self.open[self.last_left]]
        self.last_left = before
        return before

    def cancel(self, which: NDArray[np.int64] | None = None) -> int:
        """Give up replies in flight; return how many. Their work is never done.

        Args:
            which: indices into ``parties``; by default all replies in flight.

        Raises:
            ConfigError: the work is done: the flight was sent ahead, and one of its replies has been used.
        """
        self.require_undone()
        before = np.flatnonzero(self.open)
        asked = np.arange(len(self.parties)) if which is None else which
        stopped = asked[
            self.open[asked] | ~np.isfinite(self.arrives[asked])
        ]  # devices on their way to a crash get the message too
        self.open[asked] = False
        given_up = before[~self.open[before]]
        if self.credit is not None:
            self.credit(self, stopped)
        if self.unheard is not None:
            self.unheard(self, given_up)
        if self.launch is not None:
            self.launch.drop(given_up)
        return len(given_up)

    def require_undone(self) -> None:
        """Refuse to give up work that ran ahead of its arrival."""
        if self.kept is not None:
            raise ConfigError(
                "work that is done cannot be cancelled",
                where=self.request.id,
                remedy="cancel before the first reply of the flight is used, ignore the result, or send without ahead=True",
            )


@dataclass(frozen=True)
class Handle:
    """One arrival."""

    flight: Flight
    index: int
    touch: Callable[[list[Handle]], Awaitable[list[Reply]]]

    @property
    def party(self) -> Any:
        """The party that replied."""
        return self.flight.parties[self.index]

    @property
    def version(self) -> int:
        """The version that the program gave when it sent the request."""
        return self.flight.version

    def cancel(self) -> bool:
        """Give up an arrival that was not used; return whether there was one. Its work is never done.

        Raises:
            ConfigError: the work is done; see ``Flight.cancel``.
        """
        self.flight.require_undone()
        was = bool(self.flight.waiting[self.index])
        self.flight.waiting[self.index] = False
        if was and self.flight.unheard is not None:
            self.flight.unheard(self.flight, np.array([self.index]))
        if was and self.flight.launch is not None:
            self.flight.launch.drop(np.array([self.index]))
        return was

    async def result(self) -> Any:
        """The reply; the first call runs all arrived work of the same request in one block.

        Raises:
            TaskError: the task raised.
            ConfigError: the arrival was combined or cancelled.
        """
        reply = (await self.touch([self]))[0]
        if reply.error is not None:
            raise reply.error
        return reply.value


@dataclass(frozen=True)
class Arrivals:
    """Replies that arrived, as columns ordered by time, ties by position.

    Attributes:
        positions: positions of the parties.
        time: seconds on the clock.
        version: the version of each request.
        flights: the flights of the replies.
        flight_of: index into ``flights`` of each arrival.
        index: index into the flight's parties of each arrival.
    """

    positions: NDArray[np.int64]
    time: NDArray[np.float64]
    version: NDArray[np.int64]
    flights: list[Flight]
    flight_of: NDArray[np.int64]
    index: NDArray[np.int64]
    touch: Callable[[list[Handle]], Awaitable[list[Reply]]]

    def __len__(self) -> int:
        return len(self.positions)

    def then(self, later: Arrivals) -> Arrivals:
        """These arrivals, followed by later ones of the same hub."""
        flights = list(dict.fromkeys([*self.flights, *later.flights]))
        place = {id(flight): i for i, flight in enumerate(flights)}
        renumbered = np.array([place[id(flight)] for flight in later.flights], dtype=np.int64)
        return Arrivals(
            np.concatenate([self.positions, later.positions]),
            np.concatenate([self.time, later.time]),
            np.concatenate([self.version, later.version]),
            flights,
            np.concatenate([self.flight_of, renumbered[later.flight_of]]),
            np.concatenate([self.index, later.index]),
            self.touch,
        )

    def until(self, moment: float) -> Arrivals:
        """The arrivals up to a moment. The others are in flight again, and are part of the next arrivals."""
        early = self.time <= moment
        for k, flight in enumerate(self.flights):
            back = self.index[(self.flight_of == k) & ~early]
            flight.use(back)
            flight.open[back] = True
            flight.last_left = None  # more replies are in flight than at the last call of `left`
        return Arrivals(
            self.positions[early],
            self.time[early],
            self.version[early],
            self.flights,
            self.flight_of[early],
            self.index[early],
            self.touch,
        )

    def __getitem__(self, i: int) -> Handle:
        return Handle(self.flights[int(self.flight_of[i])], int(self.index[i]), self.touch)

    def by_flight(self) -> list[tuple[Flight, NDArray[np.int64]]]:
        """Each flight, with the indices of its parties whose replies are here, ascending."""
        return [(flight, np.sort(self.index[self.flight_of == k])) for k, flight in enumerate(self.flights)]

    def handles(self) -> list[Handle]:
        """All handles."""
        return [self[i] for i in range(len(self))]

    async def results(self) -> list[Any]:
        """All replies, in order of arrival; ``None`` for a task that raised, where the world drops errors."""
        return [reply.value for reply in await self.touch(self.handles())]


def by_flight(handles: Sequence[Handle]) -> list[tuple[Flight, NDArray[np.int64]]]:
    """Each flight, with the indices of these handles, ascending."""
    flights = dict.fromkeys(handle.flight for handle in handles)
    return [(f, np.array(sorted(h.index for h in handles if h.flight is f), dtype=np.int64)) for f in flights]


# ---------------------------------------------------------------------- requests in flight, in a checkpoint


def saved_flights(flights: Sequence[Flight]) -> dict[str, Any]:
    """These requests as a tree; a message that was sent many times is stored once."""
    messages = {id(f.request.message): f.request.message for f in flights}
    places = {key: i for i, key in enumerate(messages)}
    return {"messages": list(messages.values()), "rows": [_row(f, places[id(f.request.message)]) for f in flights]}


def flights_of(saved: dict[str, Any], roster: Roster, slot: str, find: Callable[[str], Task]) -> list[Flight]:
    """The requests of a checkpoint.

    Args:
        saved: the result of `saved_flights`.
        roster: the roster that their positions refer to.
        slot: the slot of their parties' private states.
        find: returns the task with a name.
    """
    return [_flight(row, saved["messages"][row["message"]], roster, slot, find) for row in saved["rows"]]


def _row(f: Flight, message: int) -> dict[str, Any]:
    return {
        "task": f.request.task.spec(),
        "message": message,
        "id": f.request.id,
        "key": f.request.key,
        "mail": f.request.mail.sealed() if f.request.mail else {},
        "positions": f.parties.positions,
        "arrives": f.arrives,
        "lost": f.lost,
        "fraction": f.fraction,
        "version": f.version,
        "sent": f.sent,
        "down": f.down,
        "open": f.open | f.waiting,
        "energy": f.energy,
        "reason": f.reason,
        "spending": None if f.spending is None else vars(f.spending),
        "turn": f.request.turn,
        "ahead": f.ahead,
        "kept": None if f.kept is None else [[i, pack_folded(one)] for i, one in f.kept.items()],
    }


def _flight(row: dict[str, Any], message: Any, roster: Roster, slot: str, find: Callable[[str], Task]) -> Flight:
    mail = Mailboxes(row["mail"]) if row["mail"] else None
    request = Request(row["id"], Task.of(row["task"], find), message, slot, row["key"], mail=mail, turn=row["turn"])
    parties = Parties(roster, np.array(row["positions"]))
    arrives, fraction, open_, lost = (np.array(row[name]) for name in ("arrives", "fraction", "open", "lost"))
    waiting = np.zeros(len(parties), dtype=bool)
    flight = Flight(request, parties, arrives, fraction, row["version"], row["sent"], row["down"], open_, waiting, lost)
    flight.energy, flight.reason = (None if row[k] is None else np.array(row[k]) for k in ("energy", "reason"))
    spending = row.get("spending")
    flight.spending = None if spending is None else Spending(**{k: np.array(v) for k, v in spending.items()})
    flight.ahead = row["ahead"]
    flight.kept = None if row["kept"] is None else {int(i): unpack_folded(one) for i, one in row["kept"]}
    return flight
