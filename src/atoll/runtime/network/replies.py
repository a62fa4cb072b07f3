"""Replies in transit from sites: who has answered, with what, which replies are no longer awaited, and the sum that they are added to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import add_into
from atoll.core.errors import MessageError
from atoll.core.execution.engine import News
from atoll.core.requests.request import PartialSum, Request, RunningSum
from atoll.core.requests.wire import unpack_error, unpack_folded

from .validation import majority, measures, outlying, require_declared, require_fit, require_reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.aggregate import Totals

__all__ = ["ReplyTable", "Running", "Started"]


# ------------------------------------------------------------------ a running sum that owns its memory
#
# A running sum that owns its memory: summands are added in place, in cohort order, and their sources are freed along the way.


class Running:
    """The sum of the replies so far.

    Adding in place gives the same bits as adding into new arrays. A sum takes the memory of one summand, however many
    you add.

    Args:
        positions: the cohort, which gives the order.
    """

    def __init__(self, positions: NDArray[np.int64]) -> None:
        self._none = positions[:0]
        self._sum = RunningSum(_add_in_place)

    def add(self, frame: Any, like: Totals | None = None) -> None:
        """Add the next reply of the cohort, as its site sent it and `require_reply` accepted it.

        Args:
            frame: the reply.
            like: what it must fit besides those before it.

        Raises:
            MessageError: its form differs from those before it; the sum is unchanged.
        """
        if frame["op"] == "lost":
            self.reject(int(frame["party"]), str(frame.get("why", "the party was lost")))
            return
        part = unpack_folded(frame["folded"])
        require_fit(like or {}, part.totals)
        require_fit(self._sum.totals, part.totals)
        self._sum.add(part)

    @property
    def begun(self) -> bool:
        """Tell whether a reply with values is in it."""
        return bool(self._sum.totals)

    def reject(self, position: int, why: str) -> None:
        """Note that a party's reply is not in the sum."""
        self._sum.add(PartialSum({}, self._none, rejected={position: why}))

    def fold_sum(self) -> PartialSum:
        """Return the sum and who is in it."""
        return self._sum.result()


def _add_in_place(totals: Totals, more: Totals) -> Totals:
    add_into(totals, more)
    return totals


# ------------------------------------------------------------------ replies in transit from sites: who has answered, with what, and which replies are no longer awaited


Drop = Callable[[str, list[int], bool], None]
_SAID = {"sum": "folded", "fold": "folded", "run": "ran", "": "done"}
"""What was asked for -> what a party then sends."""


@dataclass(eq=False)
class Started:
    """One launch, as the traffic of a federation sees it: columns that fill.

    Attributes:
        request: path of the request.
        positions: the parties; one that is named more than once is asked once, and its reply stands at each of its
            indices.
        arrives: clock time of each arrival, ``inf`` until then.
        lost: clock time at which each party was given up, ``inf`` until then.
    """

    request: str
    positions: NDArray[np.int64]
    arrives: NDArray[np.float64]
    lost: NDArray[np.float64]
    tell: Drop
    release: Callable[[str, list[int]], list[int]]

    def drop(self, which: NDArray[np.int64], *, undo: bool = True) -> None:
        """Drop these replies: nothing will use them."""
        unwanted = self.release(self.request, self.positions[which].tolist())
        if unwanted:
            self.tell(self.request, unwanted, undo)


@dataclass(eq=False)
class _Entry:
    """What is awaited of one party: once, even if the launch names it at several indices."""

    started: Started
    wanted: str
    request: Request
    indices: list[int] = field(default_factory=list)
    frame: Any = None
    left: int = 0  # indices whose reply was neither used nor dropped

    def note_arrival(self, now: float) -> None:
        for index in self.indices:
            if not np.isfinite(self.started.arrives[index]):
                self.started.arrives[index] = now

    def note_loss(self, position: int, now: float) -> None:
        self.frame = {"op": "lost", "id": self.started.request, "party": position}
        self.started.lost[self.indices] = now

    def note_refusal(self, position: int, why: str, now: float) -> None:
        """Count the reply as one that came and was rejected."""
        self.frame = {"op": "lost", "id": self.started.request, "party": position, "why": why}
        self.note_arrival(now)


@dataclass(eq=False)
class _Sum:
    """A sum from which no reply will be left out: replies are added once all before them in the cohort are in."""

    order: list[int]
    running: Running
    done: int = 0
    like: Totals | None = None  # what the replies must fit; nothing once the request says it, or replies are added


@dataclass(eq=False)
class ReplyTable:
    """Replies by request and party.

    Args:
        news: signalled at every arrival and loss.
        refuse: called with a party whose reply cannot be added to the others.
        rows: gives the rows that a party declared.
    """

    news: News
    refuse: Callable[[int, MessageError], Any] = lambda position, error: None
    rows: Callable[[int], int | None] = lambda position: None
    _entries: dict[tuple[str, int], _Entry] = field(default_factory=dict)
    _sums: dict[str, _Sum] = field(default_factory=dict)
    _measures: dict[str, dict[int, Mapping[str, float]]] = field(default_factory=dict)

    def begin(self, request: Request, positions: NDArray[np.int64], tell: Drop, push: str) -> Started:
        """Expect a reply of each party.

        Args:
            request: the request.
            positions: the parties, in cohort order.
            tell: tells sites whether replies are used.
            push: the form of the replies; ``"sum"``: no reply will be left out, and only the sum of all is wanted.
        """
        # No reply will be left out, so each may be added as soon as all before it are in: the server then holds one sum, not a cohort.
        if push == "sum":
            self._sums[request.id] = _Sum(positions.tolist(), Running(positions))
        arrives, lost = np.full(len(positions), np.inf), np.full(len(positions), np.inf)
        started = Started(request.id, positions, arrives, lost, tell, self.release)
        for position in set(positions.tolist()):
            self._entries[request.id, position] = _Entry(started, _SAID[push], request)
        for index, position in enumerate(positions.tolist()):
            entry = self._entries[request.id, position]
            entry.indices.append(index)
            entry.left += 1
        return started

    def knows(self, request: str, position: int) -> bool:
        """Tell whether a party was asked."""
        return (request, position) in self._entries

    def owed(self) -> set[int]:
        """Return the parties whose reply is awaited."""
        return {position for (_, position), entry in self._entries.items() if entry.frame is None}

    def awaits(self, request: str, position: int) -> bool:
        """Tell whether a party's reply is awaited."""
        entry = self._entries.get((request, position))
        return entry is not None and entry.frame is None

    def take_reply(self, request: str, position: int, frame: Any, now: float) -> None:
        """Take a reply that is awaited.

        Raises:
            MessageError: it is not a reply, or not what was asked for.
        """
        entry = self._entries[request, position]
        said = require_reply(frame, position, entry.wanted)
        require_declared(said, entry.request, self.rows(position))
        if isinstance(said, PartialSum) and entry.request.wraps is None:
            self._measures.setdefault(request, {})[position] = measures(said.totals)
        entry.frame = frame
        entry.note_arrival(now)
        self._advance(request)
        self.news.ring()

    def reject_reply(self, request: str, position: int, why: str, now: float) -> None:
        """Count a reply to a sum as rejected: the round goes on without it, and says why. A single reply counts as lost."""
        entry = self._entries[request, position]
        if entry.wanted == "folded":
            entry.note_refusal(position, why, now)
        else:
            entry.note_loss(position, now)
        self._advance(request)
        self.news.ring()

    def _advance(self, request: str) -> None:
        """Add what can be added, and free its bytes."""
        found = self._sums.get(request)
        if found is not None and found.like is None:
            found.like = self._form_of(request, found.order)
        while found is not None and found.like is not None and found.done < len(found.order):
            entry = self._entries[request, found.order[found.done]]
            if entry.frame is None or entry.frame["op"] == "failed":
                return
            if self._is_lost(request, found.order[found.done]):
                del found.order[found.done]
                continue
            try:
                found.running.add(entry.frame, found.like)
            except MessageError as error:
                entry.note_refusal(found.order[found.done], error.what, entry.started.arrives[entry.indices[0]])
                self.refuse(found.order[found.done], error)
                continue
            if found.running.begun:
                found.like = {}
            entry.left -= 1
            if not entry.left:
                entry.frame = {"op": "summed"}
            found.done += 1

    def _is_lost(self, request: str, position: int) -> bool:
        """Whether a party will not answer; one whose reply was refused has answered."""
        frame = self._entries[request, position].frame
        return frame is not None and frame["op"] == "lost" and "why" not in frame

    def _form_of(self, request: str, order: list[int]) -> Totals | None:
        """Return what the replies to a sum must fit: nothing more if the request says it, else what most of them are; ``None`` if that is not known yet."""
        entries = [self._entries[request, position] for position in order]
        asked = entries[0].request if entries else None
        if asked is None or asked.form is not None or asked.task.schema is not None:
            return {}
        there = [entry.frame for entry in entries if entry.frame is not None]
        return majority(there, complete=len(there) == len(entries))

    def outlying(self, request: str, positions: list[int]) -> dict[int, str]:
        """Return which of these parties' replies stand far outside the cohort, and forget what was measured of them."""
        known = self._measures.get(request, {})
        cohort = {position: known[position] for position in positions if position in known}
        for position in positions:
            self._forget(request, position)
        return outlying(cohort)

    def _forget(self, request: str, position: int) -> None:
        known = self._measures.get(request, {})
        known.pop(position, None)
        if not known:
            self._measures.pop(request, None)

    def sum_of(self, request: str, positions: list[int]) -> Running | None:
        """Return the sum of these parties' replies, if that is what was asked for and all are in; whoever was lost meanwhile is not in it."""
        found = self._sums.get(request)
        lost = {p for p in positions if (request, p) in self._entries and self._is_lost(request, p)}
        if found is None or found.done < len(found.order) or found.order != [p for p in positions if p not in lost]:
            return None
        for position in sorted(lost):
            found.running.add(self._entries[request, position].frame)
        del self._sums[request]
        for position in positions:
            self._entries.pop((request, position), None)
        return found.running

    def note_losses(self, positions: set[int], now: float) -> None:
        """Note that these parties will not answer."""
        for (_, position), entry in self._entries.items():
            if position in positions and entry.frame is None:
                entry.note_loss(position, now)
        for request in list(self._sums):
            self._advance(request)
        self.news.ring()

    def parked(self, request: str, position: int, kind: str) -> bool:
        """Tell whether a reply is at its site, or is here in a form other than the wanted one."""
        said = self._entries[request, position].frame["op"]
        return bool(said == "done" or (said == "ran" and kind == "fold") or (said == "folded" and kind == "run"))

    def reopen(self, request: Request, positions: Iterable[int], kind: str) -> None:
        """Expect these replies once more, in the wanted form."""
        for position in positions:
            entry = self._entries[request.id, position]
            entry.frame, entry.wanted, entry.request = None, _SAID[kind], request

    async def wait(self, request: str, positions: list[int]) -> None:
        """Wait until each of these parties has answered or is lost."""
        while any(self._entries[request, p].frame is None for p in positions):
            await self.news.wait()

    def take(self, request: str, position: int) -> Any:
        """Return what a party said, once for each time that it was named.

        Raises:
            AtollError: the party failed.
        """
        frame = self._entries[request, position].frame
        self.release(request, [position])
        if frame["op"] == "failed":
            raise unpack_error(frame["error"]) or RuntimeError("unknown")
        return frame

    def release(self, request: str, positions: list[int]) -> list[int]:
        """Count down one use of each; forget and return those no longer awaited."""
        over: list[int] = []
        for position in positions:
            entry = self._entries.get((request, position))
            if entry is not None:
                entry.left -= 1
            if entry is None or entry.left < 1:
                self._entries.pop((request, position), None)
                self._forget(request, position)
                over.append(position)
        return over
