"""Sessions: long conversations between parties, relayed, metered and clocked like everything else.

Each role is ``async def role(island, peers, **args)``. Channels are first-in first-out per pair, and a role names whom it hears, so a session
has one outcome whatever the scheduling. Time is kept by the roles themselves, as a message's send time plus its transfer (Lamport's rule
with durations): the session takes as long as its longest chain of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from . import message as M
from .errors import ConfigError, nearest
from .tree import Tree

__all__ = ["LocalPeers", "Peers", "Switch"]

Deliver = Callable[[str, Tree, float], Awaitable[None]]


class Peers(Protocol):
    """What a role holds: the others, by role name."""

    @property
    def names(self) -> list[str]:
        """The other roles."""
        ...

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role."""
        ...

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role."""
        ...


class LocalPeers:
    """The peers of a role, wherever the role runs.

    Args:
        me: this role.
        others: the other roles.
        carry: takes ``(target role, message, time sent)`` to the switch.
        start: seconds at which the session began.
    """

    def __init__(self, me: str, others: list[str], carry: Deliver, start: float = 0.0) -> None:
        self.me = me
        self.names = others
        self.time = start
        self._carry = carry
        self._boxes: dict[str, asyncio.Queue[tuple[Tree, float]]] = {name: asyncio.Queue() for name in others}

    def _known(self, role: str) -> None:
        if role not in self._boxes:
            raise ConfigError(
                f"the session has no role {role!r}.{nearest(role, self._boxes)}",
                where=f"role {self.me}",
                remedy=f"talk to one of {sorted(self._boxes)}",
            )

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role."""
        self._known(role)
        await self._carry(role, message, self.time)

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role."""
        self._known(role)
        message, arrival = await self._boxes[role].get()
        if isinstance(message, _Gone):
            raise message.error
        self.time = max(self.time, arrival)
        return message

    def put(self, source: str, message: Tree, arrival: float) -> None:
        """Hand over a message that arrived."""
        self._boxes[source].put_nowait((message, arrival))


class _Gone:
    """Stands in for a message of a role that failed."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Switch:
    """Relays the messages of one session.

    Args:
        parties: role -> name of the party.
        transfer: seconds for ``(source party, target party, bytes)``.
        meter: called with the bytes of every message.
    """

    def __init__(
        self, parties: dict[str, str], transfer: Callable[[str, str, int], float], meter: Callable[[int], None]
    ) -> None:
        self.parties = parties
        self._transfer = transfer
        self._meter = meter
        self._targets: dict[str, Callable[[str, Tree, float], None]] = {}

    def attach(self, role: str, put: Callable[[str, Tree, float], None]) -> None:
        """Say where messages for a role go."""
        self._targets[role] = put

    def carry(self, source: str, target: str, message: Tree, sent: float) -> None:
        """Carry one message."""
        nbytes = M.nbytes(message)
        self._meter(nbytes)
        seconds = self._transfer(self.parties[source], self.parties[target], nbytes)
        self._targets[target](source, message, sent + seconds)

    def peers(self, role: str, start: float) -> LocalPeers:
        """Peers for a role that runs in this process."""

        async def carry(target: str, message: Tree, sent: float) -> None:
            self.carry(role, target, message, sent)

        peers = LocalPeers(role, [r for r in self.parties if r != role], carry, start)
        self.attach(role, peers.put)
        return peers
