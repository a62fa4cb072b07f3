"""The party side of a federation: an executor with a memory.

A host owns the islands' private state, answers a repeated request from its journal instead of running it twice, and writes privacy events
to the ledger before anything is released. Every engine and transport ends here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .event import Event, Ledger
from .executor import Executor
from .journal import Journal
from .request import Folded, Ran, Reply, Request
from .store import StateStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Host"]


@dataclass
class Host:
    """Runs tasks and remembers.

    Attributes:
        executor: runs the tasks.
        store: private state.
        ledger: where privacy events go.
        journal: replies that must not be made twice.
    """

    executor: Executor
    store: StateStore = field(default_factory=StateStore)
    ledger: Ledger = field(default_factory=Ledger)
    journal: Journal = field(default_factory=Journal)

    def spend(self, event: Event, party: str, request: str) -> None:
        """Write a privacy event; durable when this returns."""
        self.ledger.append(event, party, request)

    def absorb(self, request: Request, ran: Ran) -> Reply:
        """Keep what a task left behind, then release its reply."""
        if ran.sealed and ran.reply.error is None:
            self.journal.put(request.id, ran.reply, ran.state, ran.changed)
        if ran.changed:
            self.store.put(request.slot, ran.reply.party, ran.state)
        return ran.reply

    def absorb_fold(self, request: Request, folded: Folded) -> Folded:
        """Keep what a cohort left behind, then release its sums."""
        for ran in folded.kept:
            self.journal.put(request.id, ran.reply, ran.state, ran.changed)
        for position, state in folded.states.items():
            self.store.put(request.slot, position, state)
        return folded

    def replay(self, request: Request, position: int) -> Ran | None:
        """What the journal knows of a request at a party."""
        return self.journal.get(request.id, position)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, one after another, in the order given."""
        keys = self.executor.keys(request, positions)
        return [await self._one(request, int(p), int(k)) for p, k in zip(positions, keys, strict=True)]

    async def _one(self, request: Request, position: int, key: int) -> Reply:
        ran = self.replay(request, position)
        if ran is None:
            ran = await self.executor.one(request, position, key, self.states(request), self.spend)
        return self.absorb(request, ran)

    def states(self, request: Request) -> Any:
        """Reads private state for a request: position -> state."""
        return lambda position: self.store.get(request.slot, position)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Run the task at each party and add up the replies."""
        replay = (lambda position: self.replay(request, position)) if self.journal else None
        folded = await self.executor.fold(request, positions, self.states(request), replay, self.spend)
        return self.absorb_fold(request, folded)

    async def role(self, request: Request, position: int, peers: Any) -> Any:
        """Run one role of a session."""
        ran = self.replay(request, position)
        if ran is None:
            ran = await self.executor.role(request, position, peers, self.states(request), self.spend)
        return self.absorb(request, ran).value
