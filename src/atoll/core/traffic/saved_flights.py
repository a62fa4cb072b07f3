"""Requests in flight, as a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..requests.cost import Spending
from ..requests.party import Parties
from ..requests.request import Mailboxes, Request
from ..requests.task import Task
from ..requests.wire import pack_folded, unpack_folded
from .flight import Flight

if TYPE_CHECKING:
    from ..requests.party import Roster

__all__ = ["flights_of", "saved_flights"]


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
