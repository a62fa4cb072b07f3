"""Sessions: long conversations between parties, relayed, metered and clocked like all other traffic.

Each role is ``async def role(island, peers, **args)``. Channels are first-in first-out per pair, and a role names the role that it hears, so a session
has one outcome under any scheduling, and a session whose roles all wait for each other raises an error. A message counts with its sealed size, encrypted
or not, so a simulation has the bytes of a network. The roles themselves keep time, as a message's send time plus its transfer (Lamport's rule
with durations): the session takes as long as its longest chain of messages and work.

A role whose party is lost, or whose clock passes the deadline, ends there. The others learn of it after its last message: a role that waits for more gets
a `SessionError`, and may continue without it. Each role decides by its own clock, so losses too have one outcome; see `atoll.core.time.prospect`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.tree import Tree
from ..errors import ConfigError, SessionError, TaskError, nearest
from ..sealing import sealed_nbytes
from ..time.meter import Said
from ..time.prospect import Ending, Prospect

__all__ = ["Deliver", "GuardedPeers", "LocalPeers", "Over", "Peers", "Switch", "as_sent"]

Deliver = Callable[[str, Tree, float], Awaitable[None]]
Put = Callable[[str, Tree, float], None]
Gone = Callable[[str, Ending, float], None]
"""Called with a role that has ended, how, and when this was known."""


class Peers(Protocol):
    """A role's view of the other roles, by name."""

    @property
    def names(self) -> list[str]:
        """The other roles."""
        ...

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role."""
        ...

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role.

        Raises:
            SessionError: the other role was lost, was late or gave up.
            TaskError: it has ended well, and sends no more.
        """
        ...

    async def work(self, share: float = 1.0) -> None:
        """Report that a share of the work that the role's task declares is done now: in a simulation, this work takes its time here.

        Work that a role does not report takes its time at the role's end. Between real parties the work itself takes time, and this does nothing.

        Args:
            share: share of all the work; the shares of a role add up to at most 1.
        """
        ...


class Over(BaseException):
    """A role ends here unconditionally: its party is lost, or the session is out of time. A BaseException, so that a role's own handlers do not catch it."""


class LocalPeers:
    """The peers of a role, wherever it runs.

    Args:
        me: this role.
        others: the other roles.
        carry: sends ``(target role, message, time sent)`` to the switch.
        start: seconds at which the session began.
        took: called with the role whose message was received.
        prospect: the prospect of this role.

    Attributes:
        time: seconds on the role's clock.
        ending: how the role was ended, if it was.
    """

    def __init__(
        self,
        me: str,
        others: list[str],
        carry: Deliver,
        start: float = 0.0,
        took: Callable[[str], None] = lambda role: None,
        prospect: Prospect | None = None,
    ) -> None:
        self.me = me
        self.names = others
        self.time = start
        self.ending: Ending = ""
        self._prospect = Prospect() if prospect is None else prospect
        self._worked, self._words = 0.0, 0
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
        self.go_on()
        await self._carry(role, message, self.time)
        self._words += 1

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role."""
        self._known(role)
        self.go_on()
        with self._waiting(role):
            message, arrival = await self._boxes[role].get()
        if isinstance(message, _Gone):
            self._boxes[role].put_nowait((message, arrival))
            if message.ending:
                self._pass(max(self.time, arrival))
            raise message.error(role, self.me)
        self._pass(max(self.time, arrival))
        self._words += 1
        self._took(role)
        return message

    async def work(self, share: float = 1.0) -> None:
        """Do a share of the work; see ``Peers.work``."""
        if not 0 <= share < math.inf or self._worked + share > 1 + 1e-9:
            raise ConfigError(
                f"work({share}) after {self._worked:g} of the work was done",
                where=f"role {self.me}",
                remedy="give shares of all the work that the task declares: together at most 1",
            )
        self._pass(self.time + share * self._prospect.work, share)
        self._worked += share

    def go_on(self) -> None:
        """Check whether the role ends here.

        Raises:
            Over: it does.
        """
        self._pass(self.time)

    def finish(self) -> None:
        """End the role: the work that it did not report takes its time.

        Raises:
            Over: the role ended before.
        """
        share = max(0.0, 1.0 - self._worked)
        self._pass(self.time + share * self._prospect.work, share)

    def _pass(self, moment: float, share: float = 0.0) -> None:
        """Let time pass on the role's clock, at most until its end."""
        if not self.ending:
            self.time, self.ending = self._prospect.reached(self.time, self._worked, self._words, moment, share)
        if self.ending:
            raise Over(self.ending)

    def put(self, source: str, message: Tree, arrival: float) -> None:
        """Deliver a message that arrived."""
        self._arrived[source] += 1
        self._boxes[source].put_nowait((message, arrival))

    def gone(self, source: str, ending: Ending = "", arrival: float = 0.0) -> None:
        """Report that another role has ended: after its last message there is nothing to wait for.

        Args:
            source: the other role.
            ending: how it ended.
            arrival: seconds at which this is known here.
        """
        self._boxes[source].put_nowait((_Gone(ending), arrival))

    @contextlib.contextmanager
    def _waiting(self, role: str) -> Iterator[None]:
        self._awaited[role] += 1
        try:
            yield
        finally:
            self._awaited[role] -= 1

    @property
    def hears(self) -> bool:
        """Whether it waits for a message. You can call this from any thread."""
        return any(list(self._awaited.values()))

    def waits(self) -> dict[str, int]:
        """The roles that this role waits for, and how many of their messages it has received; valid while its event loop is idle."""
        return {role: self._arrived[role] for role, count in self._awaited.items() if count}


class _Gone:
    """A marker in place of a role's next message: there is none."""

    _WHY: ClassVar[dict[str, str]] = {"lost": "was lost", "late": "ran out of time", "told": "gave up"}

    def __init__(self, ending: Ending) -> None:
        self.ending = ending

    def error(self, source: str, me: str) -> Exception:
        """The error for the role that waits."""
        if self.ending in self._WHY:
            return SessionError(
                f"role {source!r} {self._WHY[self.ending]}, and will not send what role {me!r} waits for",
                where="session",
                remedy="let the session end, or catch this error and continue without the role: fed.session(..., quorum=...)",
            )
        return TaskError(
            f"role {source!r} has ended and will not send what role {me!r} waits for",
            remedy="let the roles agree on the number of messages",
        )


class GuardedPeers:
    """Peers with the island's policy: it checks each message before it is sent.

    Args:
        peers: the peers.
        release: raises an error to keep a message from leaving.
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

    async def work(self, share: float = 1.0) -> None:
        """Report that a share of the work is done now."""
        await self._peers.work(share)


class Switch:
    """The relay of one session's messages.

    Args:
        parties: maps a role to the name of its party.
        transfer: seconds for ``(source party, target party, bytes)``.
        prospects: maps a role to its prospect; by default none.
        quorum: number of roles that must end well; by default all.
        carry: seconds for ``(source role, target role, bytes)``, instead of ``transfer``.

    Attributes:
        said: counts of the messages of each role to each other role.
        sealed: whether messages are encrypted before they arrive here.
        ends: for each role that has ended: how, and when this was known.
        timed: whether losses or work move the roles' clocks, in addition to messages.
        expired: whether the deadline has passed on a real clock.
        known: the roles that ended well when the session ran before, if this was recorded.
    """

    def __init__(
        self,
        parties: dict[str, str],
        transfer: Callable[[str, str, int], float],
        prospects: Mapping[str, Prospect] | None = None,
        quorum: int | None = None,
        carry: Callable[[str, str, int], float] | None = None,
    ) -> None:
        self.parties = parties
        self.sealed = False
        self.quorum = len(parties) if quorum is None else quorum
        self.prospects = {role: (prospects or {}).get(role, Prospect()) for role in parties}
        self.timed = any(prospect != Prospect() for prospect in self.prospects.values())
        self.ends: dict[str, tuple[Ending, float]] = {}
        self.expired = False
        self.known: list[str] | None = None
        self._expiry: asyncio.Event | None = None
        self._carry = carry
        self._transfer = transfer
        self._targets: dict[str, Put] = {}
        self._ends: dict[str, Gone] = {}
        self.said: dict[str, dict[str, Said]] = {role: {} for role in parties}
        self._live = set(parties)
        self._carried: Counter[tuple[str, str]] = Counter()
        self._waits: dict[str, dict[str, int]] = {}
        self._verdict: asyncio.Future[None] | None = None

    def verdict(self) -> asyncio.Future[None]:
        """Done when all roles have ended; raises an error when all that have not ended wait for each other."""
        if self._verdict is None:
            self._verdict = asyncio.get_running_loop().create_future()
        return self._verdict

    def waiting(self, role: str, waits: Mapping[str, int]) -> bool:
        """Report that a role can only wait.

        Args:
            role: the role.
            waits: the roles that it waits for, and how many of their messages it has received: a message still on its way will wake it.

        Returns:
            Whether this decides the session.
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
        verdict.exception()  # the session's caller may be gone already
        return True

    def _deadlock(self) -> TaskError:
        lines = []
        for role in (r for r in self.parties if r in self._live):
            others = " and ".join(repr(other) for other in self._waits[role])
            lines.append(f"{role!r} at {self.parties[role]} waits for a message of {others}")
        return TaskError(
            f"the roles of the session wait for each other, and no message is on its way: {'; '.join(lines)}",
            where="session",
            remedy="let one of them send before it waits; every recv needs a send of the role that it names",
        )

    def attach(self, role: str, put: Put, gone: Gone) -> None:
        """Register where messages for a role go, and the callback for the end of another role."""
        self._targets[role] = put
        self._ends[role] = gone

    def ended(self, role: str, ending: Ending = "", time: float = 0.0) -> None:
        """Report that a role has ended: the others, which may be waiting for it, learn of it.

        Args:
            role: the role.
            ending: how it ended.
            time: seconds on its clock.
        """
        known = time + (self.prospects[role].notice if ending == "lost" else 0.0)
        self.ends[role] = ending, known
        for other, gone in self._ends.items():
            if other != role:
                gone(role, ending, known)
        self._live.discard(role)
        self._judge()

    def expire(self) -> None:
        """End the session at its deadline on a real clock: every role that has not ended is late."""
        self.expired = True
        self.expiry.set()

    @property
    def expiry(self) -> asyncio.Event:
        """Set once the deadline has passed on a real clock."""
        if self._expiry is None:
            self._expiry = asyncio.Event()
        return self._expiry

    @property
    def well(self) -> list[str]:
        """The roles that ended well."""
        return [role for role in self.parties if role in self.ends and not self.ends[role][0]]

    @property
    def missed(self) -> bool:
        """Whether a role missed the deadline, and none was lost."""
        endings = {ending for ending, _ in self.ends.values()}
        return "late" in endings and "lost" not in endings

    def require_quorum(self) -> None:
        """After all roles have ended, refuse their results if too few of them ended well.

        Raises:
            SessionError: names the roles that were lost or late.
        """
        if len(self.well) >= self.quorum:
            return
        how = {"lost": "was lost", "late": "did not end in time", "told": "gave up"}
        worst = next(kind for kind in how if any(ending == kind for ending, _ in self.ends.values()))
        lines = [
            f"role {role!r} at {self.parties[role]} {how[worst]}{self._extent(role) if worst == 'lost' else ''}"
            for role in self.parties
            if self.ends[role][0] == worst
        ]
        wanted = (
            ""
            if self.quorum == len(self.parties)
            else f", and {self.quorum} of {len(self.parties)} roles must end well"
        )
        raise SessionError(
            f"{'; '.join(lines)}{wanted}",
            remedy="run the session again under another label, lengthen the deadline, or let the roles continue without some (quorum=)",
        )

    def _extent(self, role: str) -> str:
        count = sum(said.messages for said in self.said[role].values())
        return f" when it had sent {count} message{'' if count == 1 else 's'}"

    def repeat(self, role: str, said: Mapping[str, Said], ending: Ending, time: float) -> None:
        """Count the messages of a role whose result comes from the journal, and how it ended."""
        self.said[role] = dict(said)
        self.ended(role, ending, time)

    def count(self, source: str, target: str, nbytes: int, *, direct: bool = False) -> float:
        """Count a message, in either way; return the seconds that it takes."""
        self.said[source][target] = self.said[source].get(target, Said()).and_one(nbytes, direct=direct)
        self._carried[source, target] += 1
        if self._carry is not None:
            return self._carry(source, target, nbytes)
        return self._transfer(self.parties[source], self.parties[target], nbytes)

    def carry(self, source: str, target: str, message: Tree, sent: float) -> float:
        """Carry one message; return the seconds that it takes."""
        nbytes = M.nbytes(message)
        seconds = self.count(source, target, nbytes if self.sealed else sealed_nbytes(nbytes))
        self._targets[target](source, message, sent + seconds)
        return seconds

    def heard(self, frame: Any) -> float:
        """Process a frame of a role elsewhere: that it waits, or a message, whose seconds are returned."""
        if frame["op"] == "waits":
            self.waiting(frame["role"], dict(frame["for"]))
            return 0.0
        return self.carry(frame["source"], frame["target"], frame["message"], frame["time"])

    def peers(self, role: str, start: float) -> LocalPeers:
        """Peers for a role that runs in this process."""

        async def carry(target: str, message: Tree, sent: float) -> None:
            self.carry(role, target, as_sent(message), sent)

        others = [r for r in self.parties if r != role]
        peers = LocalPeers(role, others, carry, start, prospect=self.prospects[role])
        self.attach(role, peers.put, peers.gone)
        return peers


def as_sent(message: Tree) -> Tree:
    """A message that its sender can no longer change: its arrays are copied, as they are when it crosses a link."""
    return T.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, message)
