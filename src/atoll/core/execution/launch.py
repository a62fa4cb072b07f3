"""Work that an engine starts when it is asked to, and whose end it cannot foretell: what such an engine offers, and how it tells."""

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
    """Something has happened: wakes everyone who waits for a reply."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    def ring(self) -> None:
        """Wake those who wait."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Nothing will happen any more: whoever waits gets the error."""
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
        """Nobody will use these replies: the parties forget them and what they left behind (or keep the latter)."""
        ...


class LiveEngine(Protocol):
    """What an engine offers besides `Engine` if it is ``live``."""

    live: bool
    news: News

    def launch(self, request: Request, positions: NDArray[np.int64], push: str) -> Launch:
        """Start the task at each party at once.

        Args:
            request: what to do.
            positions: where.
            push: what a party sends when it is done: the encoded summands of a sum (``"fold"``; ``"sum"`` where nobody is left out, so that they
                can be added as they come), the reply (``"run"``), or word that it is done (``""``), because what will become of the reply is
                not decided yet.
        """
        ...


def is_live(engine: Engine, clock: Clock) -> bool:
    """Whether replies come unforetold: a real clock, and an engine that starts work when it is sent."""
    return bool(getattr(engine, "live", False)) and not clock.virtual
