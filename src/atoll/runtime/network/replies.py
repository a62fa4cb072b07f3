"""Replies under way from sites: who has answered, with what, and whom nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.aggregate import merge_totals
from atoll.core.live import News
from atoll.core.request import Folded, Request
from atoll.core.wire import unpack_error, unpack_folded

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Replies", "Started", "merged"]

Drop = Callable[[str, list[int], bool], None]


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
    frame: Any = None


@dataclass(eq=False)
class Replies:
    """Replies by request and party.

    Args:
        news: rung at every arrival and loss.
    """

    news: News
    _entries: dict[tuple[str, int], _Entry] = field(default_factory=dict)

    def begin(self, request: Request, positions: NDArray[np.int64], tell: Drop) -> Started:
        """Expect a reply of each party."""
        arrives, lost = np.full(len(positions), np.inf), np.full(len(positions), np.inf)
        started = Started(request.id, positions, arrives, lost, tell, self.forget)
        for index, position in enumerate(positions.tolist()):
            self._entries[request.id, position] = _Entry(started, index)
        return started

    def knows(self, request: str, position: int) -> bool:
        """Whether a party was asked."""
        return (request, position) in self._entries

    def owed(self) -> set[int]:
        """Parties whose reply is awaited."""
        return {position for (_, position), entry in self._entries.items() if entry.frame is None}

    def arrived(self, request: str, position: int, frame: Any, now: float) -> None:
        """A reply is here; one that nobody waits for is forgotten."""
        entry = self._entries.get((request, position))
        if entry is None or entry.frame is not None:
            return
        entry.frame = frame
        if not np.isfinite(entry.started.arrives[entry.index]):
            entry.started.arrives[entry.index] = now
        self.news.ring()

    def lost(self, positions: set[int], now: float) -> None:
        """These parties will not answer."""
        for (request, position), entry in self._entries.items():
            if position in positions and entry.frame is None:
                entry.frame = {"op": "lost", "id": request, "party": position}
                entry.started.lost[entry.index] = now
        self.news.ring()

    def parked(self, request: str, position: int, kind: str) -> bool:
        """Whether a reply lies at its site, or here in another form than it is wanted in."""
        said = self._entries[request, position].frame["op"]
        return bool(said == "done" or (said == "ran" and kind == "fold") or (said == "folded" and kind == "run"))

    def reopen(self, request: str, positions: Iterable[int]) -> None:
        """Expect these replies once more, in the form in which they are wanted."""
        for position in positions:
            self._entries[request, position].frame = None

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


def merged(frames: Iterable[Any], positions: NDArray[np.int64]) -> Folded:
    """Add up the summands of single parties, in cohort order."""
    whole = Folded({}, positions[:0], positions[:0])
    senders, sizes = [positions[:0]], [positions[:0]]
    for frame in frames:
        if frame["op"] == "lost":
            whole.rejected[int(frame["party"])] = "the party was lost"
            continue
        part = unpack_folded(frame["folded"])
        whole.totals = merge_totals([whole.totals, part.totals])
        senders.append(part.senders)
        sizes.append(part.nbytes)
        whole.rejected.update(part.rejected)
        whole.errors.update(part.errors)
    whole.senders, whole.nbytes = np.concatenate(senders), np.concatenate(sizes)
    return whole
