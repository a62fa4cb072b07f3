"""Sessions: long conversations between parties, relayed, metered and clocked like everything else.

Each role is ``async def role(island, peers, **args)``. Channels are first-in first-out per pair, and a role names whom it hears, so a session
has one outcome whatever the scheduling, and roles that all wait for each other are told so. Time is kept by the roles themselves, as a message's send time plus its transfer (Lamport's rule
with durations): the session takes as long as its longest chain of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from . import message as M
from . import tree as T
from .errors import ConfigError, TaskError, nearest
from .tree import Tree

__all__ = ["Deliver", "GuardedPeers", "LocalPeers", "Peers", "Switch", "as_sent"]

Deliver = Callable[[str, Tree, float], Awaitable[None]]
Put = Callable[[str, Tree, float], None]


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
        took: called with the role whose message was taken.
    """

    def __init__(
        self,
        me: str,
        others: list[str],
        carry: Deliver,
        start: float = 0.0,
        took: Callable[[str], None] = lambda role: None,
    ) -> None:
        self.me = me
        self.names = others
        self.time = start
        self._carry = carry
        self._took = took
        self._boxes: dict[str, asyncio.Queue[tuple[Tree, float]]] = {name: asyncio.Queue() for name in others}
        self._arrived: Counter[str] = Counter()
        self._awaited: Counter[str] = Counter()

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
        with self._waiting(role):
            message, arrival = await self._boxes[role].get()
        if message is _GONE:
            self._boxes[role].put_nowait((_GONE, arrival))
            raise TaskError(
                f"role {role!r} has ended and will not send what role {self.me!r} waits for",
                remedy="let the roles agree on the number of messages",
            )
        self.time = max(self.time, arrival)
        self._took(role)
        return message

    def put(self, source: str, message: Tree, arrival: float) -> None:
        """Hand over a message that arrived."""
        self._arrived[source] += 1
        self._boxes[source].put_nowait((message, arrival))

    def gone(self, source: str) -> None:
        """Another role has ended: after its last message there is nothing to wait for."""
        self._boxes[source].put_nowait((_GONE, 0.0))

    @contextlib.contextmanager
    def _waiting(self, role: str) -> Iterator[None]:
        self._awaited[role] += 1
        try:
            yield
        finally:
            self._awaited[role] -= 1

    @property
    def hears(self) -> bool:
        """Whether it waits for a message of somebody; to be asked from any thread."""
        return any(list(self._awaited.values()))

    def waits(self) -> dict[str, int]:
        """Whom this role waits for, and how many messages of theirs it has had; true while its event loop is idle."""
        return {role: self._arrived[role] for role, count in self._awaited.items() if count}


_GONE: Any = object()


class GuardedPeers:
    """Peers behind the island's policy: every message passes it before it is sent.

    Args:
        peers: the peers.
        release: raises to keep a message in.
    """

    def __init__(self, peers: Peers, release: Callable[[Tree], None]) -> None:
        self._peers = peers
        self._release = release

    @property
    def names(self) -> list[str]:
        """The other roles."""
        return self._peers.names

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role."""
        self._release(message)
        await self._peers.send(role, message)

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role."""
        return await self._peers.recv(role)


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
        self._targets: dict[str, Put] = {}
        self._ends: dict[str, Callable[[str], None]] = {}
        self.said = dict.fromkeys(parties, 0)
        self._live = set(parties)
        self._carried: Counter[tuple[str, str]] = Counter()
        self._waits: dict[str, dict[str, int]] = {}
        self._verdict: asyncio.Future[None] | None = None

    def verdict(self) -> asyncio.Future[None]:
        """Done when all roles have ended; it raises when all that have not ended wait for each other."""
        if self._verdict is None:
            self._verdict = asyncio.get_running_loop().create_future()
        return self._verdict

    def waiting(self, role: str, waits: Mapping[str, int]) -> bool:
        """A role can do nothing but wait.

        Args:
            role: the role.
            waits: whom it waits for, and how many messages of theirs it has had: one that is still on its way will wake it.

        Returns:
            Whether that decides the session.
        """
        self._waits[role] = dict(waits)
        return self._judge()

    def _stuck(self, role: str) -> bool:
        waits = self._waits.get(role, {})
        return bool(waits) and all(r in self._live and self._carried[r, role] == had for r, had in waits.items())

    def _judge(self) -> bool:
        verdict = self.verdict()
        if verdict.done() or not all(map(self._stuck, self._live)):
            return False
        if not self._live:
            verdict.set_result(None)
            return True
        verdict.set_exception(self._deadlock())
        verdict.exception()  # whoever holds the session may be gone already
        return True

    def _deadlock(self) -> TaskError:
        told = []
        for role in (r for r in self.parties if r in self._live):
            others = " and ".join(repr(other) for other in self._waits[role])
            told.append(f"{role!r} at {self.parties[role]} waits for a message of {others}")
        return TaskError(
            f"the roles of the session wait for each other, and no message is on its way: {'; '.join(told)}",
            where="session",
            remedy="let one of them send before it waits; every recv needs a send of the role that it names",
        )

    def attach(self, role: str, put: Put, gone: Callable[[str], None]) -> None:
        """Say where messages for a role go, and whom to tell that another has ended."""
        self._targets[role] = put
        self._ends[role] = gone

    def ended(self, role: str) -> None:
        """A role has ended: tell the others, who may be waiting for it."""
        for other, gone in self._ends.items():
            if other != role:
                gone(role)
        self._live.discard(role)
        self._judge()

    def repeat(self, role: str, nbytes: int) -> None:
        """Count what a role said when the session ran: it is answered from the journal."""
        self.said[role] += nbytes
        self._meter(nbytes)

    def count(self, source: str, target: str, nbytes: int) -> float:
        """Count a message, whichever way it goes; the seconds that it takes."""
        self.said[source] += nbytes
        self._meter(nbytes)
        self._carried[source, target] += 1
        return self._transfer(self.parties[source], self.parties[target], nbytes)

    def carry(self, source: str, target: str, message: Tree, sent: float) -> float:
        """Carry one message; the seconds that it takes."""
        seconds = self.count(source, target, M.nbytes(message))
        self._targets[target](source, message, sent + seconds)
        return seconds

    def heard(self, frame: Any) -> float:
        """What a role elsewhere says in a frame: that it waits, or a message, which takes the seconds that are returned."""
        if frame["op"] == "waits":
            self.waiting(frame["role"], dict(frame["for"]))
            return 0.0
        return self.carry(frame["source"], frame["target"], frame["message"], frame["time"])

    def peers(self, role: str, start: float) -> LocalPeers:
        """Peers for a role that runs in this process."""

        async def carry(target: str, message: Tree, sent: float) -> None:
            self.carry(role, target, as_sent(message), sent)

        peers = LocalPeers(role, [r for r in self.parties if r != role], carry, start)
        self.attach(role, peers.put, peers.gone)
        return peers


def as_sent(message: Tree) -> Tree:
    """A message that its sender cannot change any more: its arrays are copied, as where it crosses a link."""
    return T.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, message)
