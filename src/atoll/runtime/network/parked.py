"""What a site has done and nobody has decided about yet: replies, and the private state that they would leave behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import TaskError
from atoll.core.requests.request import PartialSum, Request, TaskResult

if TYPE_CHECKING:
    from atoll.core.execution.host import Host

__all__ = ["Parked", "Parking"]


@dataclass
class Parked:
    """One execution.

    Attributes:
        request: what was asked.
        ran: what the task gave.
        folded: its summand, where the reply was asked for as one: then the stages' memory and the state come from it.
    """

    request: Request
    ran: TaskResult
    folded: PartialSum | None = None


class Parking:
    """Executions by request and party, until the server says whether their replies are used.

    A party's private state changes only when its reply is taken, as in a simulation, where the work of an unwanted reply is never done.

    Args:
        host: where states are kept.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._kept: dict[tuple[str, int], Parked] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: Request, ran: TaskResult) -> Parked:
        """Park an execution; one that must not be repeated is in the journal before anything of it can leave."""
        if ran.sealed and ran.reply.error is None and self.host.replay(request, ran.reply.party) is None:
            self.host.journal.put([(request, ran)])
        return self.park(request, ran)

    def park(self, request: Request, ran: TaskResult) -> Parked:
        """Park what a role of a conversation gave: whether it is to be journaled is known when all roles have ended."""
        parked = self._kept[request.id, ran.reply.party] = Parked(request, ran)
        return parked

    def get(self, request: str, position: int) -> Parked:
        """A parked execution.

        Raises:
            TaskError: there is none.
        """
        parked = self._kept.get((request, position))
        if parked is None:
            raise TaskError(
                f"party number {position} has no reply to {request} any more",
                where="site",
                remedy="resume the job from its last checkpoint",
            )
        return parked

    def keep(self, request: str, positions: Iterable[int]) -> None:
        """The replies are used: what they leave behind becomes the parties' state."""
        for position in positions:
            parked = self._kept.pop((request, position), None)
            if parked is not None:
                self._settle(parked)

    def _settle(self, parked: Parked) -> None:
        request, ran, folded = parked.request, parked.ran, parked.folded
        self.host.receive(request, ran)
        if folded is not None:
            self.host.drafts.leave(request, folded.left)
        else:
            self.host.leave(request, ran.reply.party, ran.left)

    def conclude(self, path: str, kept: Iterable[int]) -> None:
        """A sum has ended: what its requests left, parked or drafted, becomes the state of those that are kept, and is dropped for all others."""
        there = set(kept)
        for key in [key for key, parked in self._kept.items() if parked.request.sum == path]:
            parked = self._kept.pop(key)
            if key[1] in there:
                self._settle(parked)
        self.host.drafts.conclude(path, np.array(sorted(there), dtype=np.int64))

    def discard(self, request: str, positions: Iterable[int]) -> None:
        """Nobody uses the replies: it is as if the tasks had not run."""
        for position in positions:
            self._kept.pop((request, position), None)
