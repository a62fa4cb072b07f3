"""What a site has done that is not decided yet: replies, and the private state that they would leave."""

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
        request: the request.
        ran: what the task gave.
        folded: its summand, if the reply was asked for as one; then the stages' memory and the state come from it.
    """

    request: Request
    ran: TaskResult
    folded: PartialSum | None = None


class Parking:
    """Executions by request and party, until the server says whether their replies are used.

    A party's private state changes only when its reply is used. A simulation has the same effect: it never does the
    work of an unwanted reply.

    Args:
        host: the keeper of states.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._kept: dict[tuple[str, int], Parked] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: Request, ran: TaskResult) -> Parked:
        """Park an execution; one that must not be repeated is journaled before any of it can leave."""
        if ran.sealed and ran.reply.error is None and self.host.replay(request, ran.reply.party) is None:
            self.host.journal.put([(request, ran)])
        return self.park(request, ran)

    def park(self, request: Request, ran: TaskResult) -> Parked:
        """Park what a role of a session gave; whether to journal it is known once all roles have ended."""
        parked = self._kept[request.id, ran.reply.party] = Parked(request, ran)
        return parked

    def get(self, request: str, position: int) -> Parked:
        """Return a parked execution.

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
        """Use the replies: what they leave behind becomes the parties' state."""
        for position in positions:
            parked = self._kept.pop((request, position), None)
            if parked is not None:
                self._settle(parked)

    def _settle(self, parked: Parked) -> None:
        request, ran, folded = parked.request, parked.ran, parked.folded
        if folded is not None:
            self.host.drafts.leave(request, folded.left)
        else:
            self.host.leave(request, ran.reply.party, ran.left)

    def conclude(self, path: str, kept: Iterable[int]) -> None:
        """End a sum: what its requests left, parked or drafted, becomes the state of the kept parties and is dropped for all others."""
        there = set(kept)
        for key in [key for key, parked in self._kept.items() if parked.request.sum == path]:
            parked = self._kept.pop(key)
            if key[1] in there:
                self._settle(parked)
        self.host.drafts.conclude(path, np.array(sorted(there), dtype=np.int64))

    def discard(self, request: str, positions: Iterable[int]) -> None:
        """Discard the replies, as if the tasks had not run."""
        for position in positions:
            self._kept.pop((request, position), None)
