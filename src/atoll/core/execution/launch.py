"""The interface of engines that start work at once and cannot predict its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ..requests.request import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..time.clock import Clock
    from .engine import Engine

__all__ = ["Launch", "LiveEngine", "News", "is_live"]


class News:
    """An event that wakes all who wait for a reply."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    def ring(self) -> None:
        """Wake all who wait."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Report that nothing will happen any more: all who wait get the error."""
        self._failure = self._failure or error
        self.ring()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the next event, or for some seconds.

        Raises:
            AtollError: the engine has failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=seconds)
        if self._failure is not None:
            raise self._failure


class Launch(Protocol):
    """Work that was started at some parties.

    Attributes:
        arrives: clock time at which each reply arrived, ``inf`` until then, ``(parties,)``.
        lost: clock time at which each party was given up, ``inf`` until then.
    """

    arrives: NDArray[np.float64]
    lost: NDArray[np.float64]

    def drop(self, which: NDArray[np.int64], *, undo: bool = True) -> None:
        """Call off these replies: the parties discard them and what they left (or, without ``undo``, keep the latter)."""
        ...


class LiveEngine(Protocol):
    """What an engine offers in addition to `Engine` if it is ``live``."""

    live: bool
    news: News

    def launch(self, request: Request, positions: NDArray[np.int64], push: str) -> Launch:
        """Start the task at each party at once.

        Args:
            request: the request.
            positions: positions of the parties.
            push: what a party sends when it is done: the encoded summands of a sum (``"fold"``; ``"sum"`` if no party is left out, so that they
                can be added on arrival), the reply (``"run"``), or only the news that it is done (``""``), because the use of the reply is
                not decided yet.
        """
        ...


def is_live(engine: Engine, clock: Clock) -> bool:
    """Whether replies arrive unpredicted: with a real clock, and an engine that starts work when it is sent."""
    return bool(getattr(engine, "live", False)) and not clock.virtual
