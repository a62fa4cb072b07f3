"""Replies under way from sites: who has answered, with what, and whom nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.launch import News
from atoll.core.request import Request
from atoll.core.wire import unpack_error

from .checks import require_reply
from .running import Running

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Replies", "Started"]

Drop = Callable[[str, list[int], bool], None]
_SAID = {"sum": "folded", "fold": "folded", "run": "ran", "": "done"}
"""What was asked for -> what a party then says."""


@dataclass(eq=False)
class Started:
    """One launch, as the traffic of a federation sees it: columns that fill.

    Attributes:
        request: path of the request.
        positions: whom.
        arrives: clock time of each arrival, ``inf`` until then.
        lost: clock time at which each party was given up, ``inf`` until then.
    """

    request: str
    positions: NDArray[np.int64]
    arrives: NDArray[np.float64]
    lost: NDArray[np.float64]
    tell: Drop
    forget: Callable[[str, list[int]], None]

    def drop(self, which: NDArray[np.int64], *, undo: bool = True) -> None:
        """Nobody will use these replies."""
        positions = self.positions[which].tolist()
        if positions:
            self.forget(self.request, positions)
            self.tell(self.request, positions, undo)


@dataclass(eq=False)
class _Entry:
    started: Started
    index: int
    wanted: str
    frame: Any = None


@dataclass(eq=False)
class _Sum:
    """A sum that nobody will be left out of: replies are added as soon as all before them in the cohort are in."""

    order: list[int]
    running: Running
    done: int = 0


@dataclass(eq=False)
class Replies:
    """Replies by request and party.

    Args:
        news: rung at every arrival and loss.
        refuse: told of a party whose reply cannot be added to the others'.
    """

    news: News
    refuse: Callable[[int, MessageError], Any] = lambda position, error: None
    _entries: dict[tuple[str, int], _Entry] = field(default_factory=dict)
    _sums: dict[str, _Sum] = field(default_factory=dict)

    def begin(self, request: Request, positions: NDArray[np.int64], tell: Drop, push: str) -> Started:
        """Expect a reply of each party.

        Args:
            request: what was asked.
            positions: whom.
            tell: tells sites what becomes of replies.
            push: in which form; ``"sum"``: nobody will be left out, and only the sum of all is wanted.
        """
        if push == "sum":
            self._sums[request.id] = _Sum(positions.tolist(), Running(positions))
        arrives, lost = np.full(len(positions), np.inf), np.full(len(positions), np.inf)
        started = Started(request.id, positions, arrives, lost, tell, self.forget)
        for index, position in enumerate(positions.tolist()):
            self._entries[request.id, position] = _Entry(started, index, _SAID[push])
        return started

    def knows(self, request: str, position: int) -> bool:
        """Whether a party was asked."""
        return (request, position) in self._entries

    def owed(self) -> set[int]:
        """Parties whose reply is awaited."""
        return {position for (_, position), entry in self._entries.items() if entry.frame is None}

    def arrived(self, request: str, position: int, frame: Any, now: float) -> None:
        """A reply is here; one that nobody waits for is forgotten.

        Raises:
            MessageError: it is none, or not what was asked for.
        """
        entry = self._entries.get((request, position))
        if entry is None or entry.frame is not None:
            return
        require_reply(frame, position, entry.wanted)
        entry.frame = frame
        if not np.isfinite(entry.started.arrives[entry.index]):
            entry.started.arrives[entry.index] = now
        self._advance(request)
        self.news.ring()

    def _advance(self, request: str) -> None:
        """Add what can be added; its bytes are let go."""
        found = self._sums.get(request)
        while found is not None and found.done < len(found.order):
            entry = self._entries[request, found.order[found.done]]
            if entry.frame is None or entry.frame["op"] == "failed":
                return
            if entry.frame["op"] == "lost":
                del found.order[found.done]
                continue
            try:
                found.running.add(entry.frame)
            except MessageError as error:
                self._take_back(entry, found.order[found.done])
                self.refuse(found.order[found.done], error)
                continue
            entry.frame = {"op": "summed"}
            found.done += 1

    def _take_back(self, entry: _Entry, position: int) -> None:
        """A reply that had come counts as lost."""
        started = entry.started
        started.lost[entry.index], started.arrives[entry.index] = started.arrives[entry.index], np.inf
        entry.frame = {"op": "lost", "id": started.request, "party": position}

    def sum_of(self, request: str, positions: list[int]) -> Running | None:
        """The sum of these parties' replies, if that is what was asked for and all are in."""
        found = self._sums.get(request)
        if found is None or found.done < len(found.order) or found.order != positions:
            return None
        del self._sums[request]
        self.forget(request, positions)
        return found.running

    def lost(self, positions: set[int], now: float) -> None:
        """These parties will not answer."""
        for (request, position), entry in self._entries.items():
            if position in positions and entry.frame is None:
                entry.frame = {"op": "lost", "id": request, "party": position}
                entry.started.lost[entry.index] = now
        for request in list(self._sums):
            self._advance(request)
        self.news.ring()

    def parked(self, request: str, position: int, kind: str) -> bool:
        """Whether a reply lies at its site, or here in another form than it is wanted in."""
        said = self._entries[request, position].frame["op"]
        return bool(said == "done" or (said == "ran" and kind == "fold") or (said == "folded" and kind == "run"))

    def reopen(self, request: str, positions: Iterable[int], kind: str) -> None:
        """Expect these replies once more, in the form in which they are wanted."""
        for position in positions:
            entry = self._entries[request, position]
            entry.frame, entry.wanted = None, _SAID[kind]

    async def wait(self, request: str, positions: list[int]) -> None:
        """Wait until each of these parties has answered or is lost."""
        while any(self._entries[request, p].frame is None for p in positions):
            await self.news.wait()

    def take(self, request: str, position: int) -> Any:
        """What a party said, once.

        Raises:
            AtollError: it could not say it.
        """
        frame = self._entries.pop((request, position)).frame
        if frame["op"] == "failed":
            raise unpack_error(frame["error"]) or RuntimeError("unknown")
        return frame

    def forget(self, request: str, positions: list[int]) -> None:
        """Nobody waits for these any more."""
        for position in positions:
            self._entries.pop((request, position), None)
