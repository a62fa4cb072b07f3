"""Work in flight: requests that were sent, as columns, and what has arrived of them.

Nothing is created per client. A flight keeps when each party's reply arrives; the work itself is done when somebody touches an arrival, for
all arrivals of like work in one block, and never for a reply that nobody will use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .party import Parties
from .request import Reply, Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arrivals", "Flight", "Handle"]


@dataclass(eq=False)
class Flight:
    """One ``send``.

    Attributes:
        request: what was asked.
        parties: whom.
        arrives: clock time of each reply, ``inf`` for a crash.
        fraction: share of the work each party will have done.
        version: number given by the program, such as the round of the base model.
        sent: clock time of sending.
        open: replies still under way.
        lost: clock time at which the link noticed a crash, ``inf`` where there is none.
        cancelled: indices given up when the round closed.
        replies: what has been worked out, by index.
        waiting: indices that arrived and have not been touched.
        hub: whose link it is.
    """

    request: Request
    parties: Parties
    arrives: NDArray[np.float64]
    fraction: NDArray[np.float64]
    version: int
    sent: float
    hub: str
    open: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    lost: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    cancelled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    replies: dict[int, Reply] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if len(self.open) != len(self.parties):
            self.open = np.isfinite(self.arrives)

    def due(self) -> NDArray[np.float64]:
        """Arrival times of what is still under way."""
        return self.arrives[self.open]

    def cancel(self, which: NDArray[np.int64] | None = None) -> int:
        """Give up replies under way; return how many. Their work is never done."""
        before = int(self.open.sum())
        if which is None:
            self.open[:] = False
        else:
            self.open[which] = False
        return before - int(self.open.sum())


@dataclass(frozen=True)
class Handle:
    """One arrival."""

    flight: Flight
    index: int
    touch: Callable[[list[Handle]], Awaitable[list[Reply]]]

    @property
    def party(self) -> Any:
        """Who answered."""
        return self.flight.parties[self.index]

    @property
    def version(self) -> int:
        """The version that the program gave when it sent."""
        return self.flight.version

    async def result(self) -> Any:
        """The reply; the first touch runs all arrived work of the same request in one block."""
        reply = (await self.touch([self]))[0]
        return reply.value


@dataclass(frozen=True)
class Arrivals:
    """Replies that arrived, as columns in order of time, ties by position.

    Attributes:
        positions: who.
        time: when, seconds on the clock.
        version: the version of each request.
        handles: one per arrival; cheap until touched.
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

    def __getitem__(self, i: int) -> Handle:
        return Handle(self.flights[int(self.flight_of[i])], int(self.index[i]), self.touch)

    def handles(self) -> list[Handle]:
        """All handles."""
        return [self[i] for i in range(len(self))]

    async def results(self) -> list[Any]:
        """All replies, in order of arrival."""
        return [reply.value for reply in await self.touch(self.handles())]
