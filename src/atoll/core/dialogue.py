"""Dialogue: requests whose single replies the program sees. Questions, supersteps, passes and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .chain import Chain
from .errors import ConfigError
from .outcomes import exchanged
from .party import Parties, Party
from .request import Mail, Request
from .results import Accept, Exchanged, Late, Replies, Terms
from .scope import Scope
from .session import Switch
from .stage import Stage
from .task import Task
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Dialogue"]


class Dialogue(Scope):
    """The verbs that return replies; see ``Federation``."""

    async def ask_all(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        deadline: float | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
    ) -> Replies:
        """Ask each party and wait for the replies; see ``Terms`` for deadline, quorum, accept, late and down.

        Raises:
            QuorumError: fewer replies than the quorum came in time.
            TaskError: a party's task raised (unless the world drops errors).
        """
        return await self._ask(parties, self._request(task, message, at), Terms(deadline, quorum, accept, late, down))

    async def ask(self, party: Party | str, task: Task, message: Tree = None, **terms: Any) -> Any:
        """Ask one party; return its reply."""
        return (await self.ask_all(self._one(party), task, message, **terms)).values[0]

    def _one(self, party: Party | str) -> Parties:
        name = party if isinstance(party, str) else party.name
        return Parties(self.world.roster, np.array([self.world.roster.position(name)], dtype=np.int64))

    async def _ask(self, parties: Parties, request: Request, terms: Terms) -> Exchanged:
        flight = self.traffic.send(request, parties, down=terms.down, push="run")
        accepted = await self.traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self.traffic.run(flight, flight.cancelled)
        replies = await self.traffic.run(flight, accepted)
        return exchanged(self.world, flight, accepted, replies, terms.quorum)

    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mail | None = None,
        uplink: Sequence[Stage] | Chain = (),
        deadline: float | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        at: Any = None,
    ) -> Exchanged:
        """One superstep: parties get their mail, reply, and post sealed envelopes that the relay holds.

        The envelopes go out with the next superstep, once the program has fixed the senders: ``mail=last.mail.only_from(names)``.

        Args:
            parties: whom to ask.
            task: what to do; ``half.wrapping(task)`` is the party half of a reducer, see ``Island.totals``.
            message: the same for everyone.
            mail: what the relay hands over.
            uplink: stages for a wrapped task; the result's ``public`` undoes them.
            deadline: seconds after sending.
            quorum: replies without which the superstep has failed.
            accept: replies after which it closes.
            at: label of the request in its random path; by default a count.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        request = self._request(task, message, at, uplink=chain, mail=mail)
        return await self._ask(parties, request, Terms(deadline, quorum, accept))

    async def relay(self, parties: Parties, task: Task, message: Tree = None, *, at: Any = None, **terms: Any) -> Any:
        """A sequential pass: each party's reply is the next party's message; return the last reply."""
        for i in range(len(parties)):
            label = None if at is None else (*(at if isinstance(at, tuple | list) else (at,)), i)
            message = (await self.ask_all(parties[i : i + 1], task, message, at=label, **terms)).values[0]
        return message

    async def session(self, roles: Mapping[str, tuple[Party | str, Task]], *, at: Any = None) -> dict[str, Any]:
        """A long conversation: each role runs at its party and talks to the others; return each role's result."""
        if len(roles) < 2:
            raise ConfigError(f"a session of {len(roles)} role(s)", remedy="give at least two roles")
        requests: dict[str, tuple[Request, int]] = {}
        parties: dict[str, str] = {}
        for role, (party, task) in roles.items():
            name = party if isinstance(party, str) else party.name
            request = self._request(task, None, None if at is None else (role, at))
            requests[role] = (request, self.world.roster.position(name))
            parties[role] = name
        switch = Switch(parties, self.world.cost.transfer, self.meter.between)
        outcome = await self.world.engine.converse(requests, switch, self.clock.now())
        await self.clock.sleep_until(max(time for _, time in outcome.values()))
        return {role: value for role, (value, _) in outcome.items()}
