"""Requests whose single replies the program sees: questions, supersteps, passes and sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.tree import Tree
from ..calls import checked_call
from ..requests.party import Parties, Party
from ..requests.request import Mailboxes, Reply, Request
from ..requests.results import Accept, Exchanged, Late, Replies, Terms
from ..requests.task import Task
from ..time.deadline import Deadline
from .outcomes import sort_replies
from .scope import Scope
from .session import hold_session

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ReplyVerbs"]


class ReplyVerbs(Scope):
    """The verbs that return replies; see ``Federation``."""

    @checked_call
    async def ask_all(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Replies:
        """Ask each party and wait for the replies; see ``Terms`` for deadline, quorum, accept, late, down and up.

        Raises:
            QuorumError: fewer replies than the quorum arrived in time.
            TaskError: a party's task raised (unless the world drops errors).
        """
        terms = Terms(deadline, quorum, accept, late, down, up)
        return await self._ask(parties, self._request(task, message, at), terms)

    @checked_call
    async def ask(self, party: Party | str, task: Task, message: Tree = None, **terms: Any) -> Any:
        """Ask one party; return its reply."""
        return (await self.ask_all(self._one(party), task, message, **terms)).values[0]

    def _one(self, party: Party | str) -> Parties:
        name = party if isinstance(party, str) else party.name
        return Parties(self.world.roster, np.array([self.world.roster.position(name)], dtype=np.int64))

    def deadline(self, seconds: float | None = None, *, supersteps: int | Sequence[float] | None = None) -> Deadline:
        """Make a deadline that several requests share, and divide the crashes of a turn among them: pass it to each as ``deadline=``.

        Args:
            seconds: seconds from now until all of them must be over; ``None`` for no limit.
            supersteps: number of requests in a turn, or a weight for each, in proportion to its time or work, such as ``(1, 8, 1)``. A device that crashes
                in the turn may then do so at any of them; see ``Deadline``.

        Example::

            limit = fed.deadline(60, supersteps=3)
            first = await fed.exchange(fed.parties, share, deadline=limit)
            second = await fed.exchange(first.senders, masked, deadline=limit)
        """
        until = math.inf if seconds is None else self.clock.now() + seconds
        return Deadline(until, seconds, supersteps)

    async def _ask(self, parties: Parties, request: Request, terms: Terms) -> Exchanged:
        flight = self._send(request, parties, terms, push="run")
        accepted = await self._close(flight, terms)
        replies = await self.traffic.run(flight, accepted)
        self._took(replies)
        return sort_replies(self.world, flight, accepted, replies, terms.quorum)

    def _took(self, replies: list[Reply]) -> None:
        """Process replies that have arrived, usable or not."""

    @checked_call
    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mailboxes | None = None,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Exchanged:
        """Run one superstep: parties get their mail, reply, and post sealed envelopes that the relay holds.

        The next superstep delivers the envelopes, once the program has fixed the senders: ``mail=last.mail.only_from(names)``. ``first.mail | second.mail``
        has the letters of two supersteps.

        Args:
            parties: parties to ask.
            task: the task to run.
            message: the message, the same for all.
            mail: letters for the relay to deliver.
            deadline: seconds after sending, or a deadline that several requests share: ``fed.deadline(...)``.
            quorum: minimum number of replies; with fewer, the superstep fails.
            accept: number of replies after which it closes.
            late: what to do with the others; see ``Terms``.
            at: label of the request in its random path; by default a count.
            down: bytes of the message to each party, if they differ from its size; letters are added.
            up: bytes of a reply with its letters, for the model of devices.
        """
        request = self._request(task, message, at, mail=mail)
        return await self._ask(parties, request, Terms(deadline, quorum, accept, late, down, up))

    @checked_call
    async def relay(self, parties: Parties, task: Task, message: Tree = None, *, at: Any = None, **terms: Any) -> Any:
        """A sequential pass: each party's reply is the next party's message; return the last reply."""
        for i in range(len(parties)):
            label = None if at is None else (*(at if isinstance(at, tuple | list) else (at,)), i)
            message = (await self.ask_all(parties[i : i + 1], task, message, at=label, **terms)).values[0]
        return message

    async def session(
        self,
        roles: Mapping[str, tuple[Party | str, Task]],
        *,
        at: Any = None,
        deadline: float | Deadline | None = None,
        quorum: int | None = None,
    ) -> dict[str, Any]:
        """Run a session: each role runs at its party and talks to the others. Return the result of each role that ended well.

        Args:
            roles: maps a role to its party and task, ``async (island, peers) -> result``.
            at: label of the session in its random path; by default a count.
            deadline: seconds after the start, or a deadline that several requests share: ``fed.deadline(...)``.
            quorum: number of roles that must end well; by default all. A role that waits for a message of a lost or late role gets a
                ``SessionError``, which it may catch.

        Raises:
            SessionError: too few roles ended well. Then every party has the state from before the session.
            TaskError: a role raised, or all roles wait for each other.
        """
        return await hold_session(self, roles, at, deadline, quorum)
