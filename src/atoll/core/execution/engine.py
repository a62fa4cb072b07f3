"""The contract of an engine: a way to run tasks at parties. Engines know tasks, never algorithms."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..requests.request import Request

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ..event import Ledger
    from ..persistence.checkpoint import CheckpointStore
    from ..requests.cohort import Population
    from ..requests.party import Roster
    from ..requests.request import PartialSum, Reply, TaskResult
    from ..time.clock import Clock
    from .executor import Executor
    from .host import Host
    from .session import Switch

__all__ = ["Engine", "Launch", "LiveEngine", "News", "RunContext", "is_live"]


class RunContext(Protocol):
    """What an engine sees of the run that it serves; `atoll.core.world.World` is one."""

    @property
    def roster(self) -> Roster:
        """All parties."""
        ...

    @property
    def registry(self) -> dict[str, Any]:
        """Tasks and other objects that the program registered by name."""
        ...

    @property
    def clock(self) -> Clock:
        """The run's clock, virtual or real."""
        ...

    @property
    def folder(self) -> Path | None:
        """Folder of the run's files, if it has one."""
        ...

    @property
    def resume(self) -> bool:
        """Whether to continue the run in the folder."""
        ...

    @property
    def state_memory(self) -> int | None:
        """Bytes of memory for private states where tasks run."""
        ...

    @property
    def population(self) -> Population:
        """The islands' data, or what is known of it."""
        ...

    @property
    def checkpoints(self) -> CheckpointStore:
        """Generations, and the engine's choices."""
        ...

    @property
    def ledger(self) -> Ledger:
        """The ledger of privacy events."""
        ...

    def executor(self, *, vectorised: bool) -> Executor:
        """Make an executor for the islands of the run."""
        ...

    def host(self, *, vectorised: bool = False) -> Host:
        """Make an executor with state, journal and ledger."""
        ...


class Engine(Protocol):
    """Runs requests at parties.

    Attributes:
        name: inline, batched, processes, ...
        choices: the engine's decisions (workers, blocks, compilation), for the record and for a resumed run.
    """

    name: ClassVar[str]
    choices: dict[str, Any]

    async def open(self, world: RunContext) -> None:
        """Prepare to serve a run."""
        ...

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party; return replies in the given order."""
        ...

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at each party and add up the replies in cohort order."""
        ...

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run the roles of a session; return for each role its reply and the time at which it ended."""
        ...

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """End a sum. What its requests (those of this ``Request.sum``) left takes effect at the parties that are kept, and nowhere else.

        Args:
            path: path of the sum.
            asked: positions of all parties that were asked.
            kept: positions of the parties whose private states and memories change: none, if the sum has failed.
        """
        ...

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the changes (or all) of a slot's private state; return the names of new segments."""
        ...

    async def settle(self, slot: str) -> None:
        """Mark the generation as safe: journals may forget the slot's earlier requests."""
        ...

    async def load(self, slot: str, segments: list[str]) -> None:
        """Restore the private state of a slot at a generation."""
        ...

    async def drop(self, slot: str) -> None:
        """Remove the private state of an ended nested program's own scopes: that of the slot, and of every slot inside it."""
        ...

    async def publish(self) -> None:
        """Make named results durable that tasks left at parties, after the program ended well; see ``Host.publish``."""
        ...

    async def close(self) -> None:
        """Release workers and links."""
        ...


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
