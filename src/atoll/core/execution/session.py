"""Sessions: long talks between parties, relayed, metered and clocked like all other traffic.

Each role is ``async def role(island, peers, **args)``. Channels are first-in first-out per pair, and a role names the role that it hears, so a session
has one outcome under any scheduling, and a session whose roles all wait for each other raises an error. A message counts with its sealed size, encrypted
or not, so a simulation has the bytes of a network. The roles themselves keep time, as a message's send time plus its transfer (Lamport's rule
with durations): the session takes as long as its longest chain of messages and work.

A role whose party is lost, or whose clock passes the deadline, ends there. The others learn of it after its last message: a role that waits for more gets
a `SessionError`, and may continue without it. Each role decides by its own clock, so losses too have one outcome; see `atoll.core.time.deadline`.

Steps. With ``peers.checkpoint(state)`` all roles meet: each makes its state durable where it runs, reports this to the switch, and waits. The switch
writes down that the step is agreed before any role goes on. So no role is ever ahead of a step that all roles have, and a session that a crash
interrupts goes on at the last agreed one. No message may be on its way at a checkpoint: what a role has sent before it was received before it. Therefore
the states of the roles are all that a step consists of.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.tree import Tree
from ..errors import AtollError, ConfigError, MessageError, SessionError, TaskError, nearest
from ..sealing import RoleSealing, sealed_nbytes
from ..time.deadline import Ending, Prospect
from ..time.meter import Said

__all__ = [
    "Chains",
    "PeerChannel",
    "Deliver",
    "GuardedPeers",
    "LocalPeers",
    "Over",
    "Peers",
    "Reach",
    "Step",
    "Switch",
    "as_sent",
]

Deliver = Callable[[str, Tree, float, str], Awaitable[None]]
"""Sends ``(target role, message, time sent, channel)`` to the switch."""
Put = Callable[[str, Tree, float, str], None]
Gone = Callable[[str, Ending, float], None]
"""Called with a role that has ended, how, and when this was known."""
Stepped = Callable[[int, float, "tuple[str, Ending] | None"], None]
"""Called when a checkpoint is decided: its number, the seconds then, and the role whose loss makes it impossible, if any."""
LONGEST_NAME = 100
"""Characters of a channel's name."""


class PeerChannel(Protocol):
    """A stream of messages between a role and the others; messages of two channels never meet. Coroutines of one role use a channel each."""

    @property
    def names(self) -> list[str]:
        """The other roles."""
        ...

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role.

        Raises:
            ConfigError: the session has no such role.
        """
        ...

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role.

        Raises:
            SessionError: the other role was lost, was late or gave up.
            TaskError: it has ended well, and sends no more.
            ConfigError: the session has no such role, or another coroutine of this role waits for it on this channel.
        """
        ...

    async def broadcast(self, message: Tree, roles: Iterable[str] | None = None) -> None:
        """Send a message to several roles, by default to all others; each copy is metered."""
        ...

    async def gather(self, roles: Iterable[str] | None = None, *, skip_lost: bool = False) -> dict[str, Any]:
        """Wait for the next message of each of several roles, by default of all others; return them by role.

        Args:
            roles: the roles.
            skip_lost: whether to leave out a role that was lost, was late or gave up, instead of raising its `SessionError`.
        """
        ...


class Peers(PeerChannel, Protocol):
    """A role's view of the other roles, by name."""

    def channel(self, name: str) -> PeerChannel:
        """A further stream to and from all other roles, which use the same name. Each call with one name returns the same stream.

        Args:
            name: 1 to 100 characters.
        """
        ...

    async def work(self, share: float = 1.0) -> None:
        """Report that a share of the work that the role's task declares is done now: in a simulation, this work takes its time here.

        Work that a role does not report takes its time at the role's end. Between real parties the work itself takes time, and this does nothing.

        Args:
            share: share of all the work; the shares of a role add up to at most 1.
        """
        ...

    async def restore(self, initial: Tree) -> Any:
        """The role's state at the last step that all roles agreed on, or ``initial`` at the first start.

        Call it first: a role that uses checkpoints begins here again after a crash.
        """
        ...

    async def checkpoint(self, state: Tree) -> None:
        """Agree with all other roles on a step, and return once all have their states of it on their disks.

        After a crash the session goes on here: the messages before it are not sent again, and what was spent before it is not spent again. Every role
        must call it equally often, and must have received what was sent to it.

        Args:
            state: everything that the role needs to go on, as a message tree; it never leaves the role's place.

        Raises:
            SessionError: a role was lost, was late or gave up, so that the step cannot be agreed.
            ConfigError: the role did not begin with ``restore``, or another of its coroutines waits for a message.
            CheckpointError: the state cannot be written.
        """
        ...


class Over(BaseException):
    """A role ends here unconditionally: its party is lost, or the session is out of time. A BaseException, so that a role's own handlers do not catch it."""


class Step(NamedTuple):
    """What a role makes durable at a checkpoint.

    Attributes:
        number: the number of the checkpoint, from 1.
        state: the role's own state.
        place: what its island has kept so far: see `Island.capture`, and its privacy events.
        worked: share of its work that it has done.
        words: number of messages that it has sent and received.
    """

    number: int
    state: Tree
    place: Tree
    worked: float
    words: int

    def pack(self) -> dict[str, Tree]:
        """The step as a message."""
        return self._asdict()


Reach = Callable[["Step", float, "dict[str, int]"], Awaitable[None]]
"""Makes a step durable, then reports it: the step, seconds on the role's clock, and the messages received from each other role."""


@dataclass
class _Box:
    """The messages of one role on one channel, and the coroutine that waits for one."""

    messages: deque[tuple[Tree, float]] = field(default_factory=deque)
    waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class LocalPeers:
    """The peers of a role, wherever it runs.

    Args:
        me: this role.
        others: the other roles.
        carry: sends a message to the switch; see ``Deliver``.
        start: seconds at which the session began, or at which the step was agreed that it resumes from.
        took: called with the role whose message was received.
        prospect: the prospect of this role.
        sealing: seals each message before it leaves, and opens it when it is received; ``None`` where the relay may read them.
        resumed: the step that it resumes from.
        reach: makes a step durable and reports it; ``None`` where a role cannot have steps.

    Attributes:
        time: seconds on the role's clock.
        ending: how the role was ended, if it was.
        resumed: see above.
        capture: returns what the role's island has kept so far; the executor sets it.
        on_step: called with the number of each agreed step; the executor sets it.
    """

    def __init__(
        self,
        me: str,
        others: list[str],
        carry: Deliver,
        start: float = 0.0,
        took: Callable[[str], None] = lambda role: None,
        prospect: Prospect | None = None,
        *,
        sealing: RoleSealing | None = None,
        resumed: Step | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.me = me
        self.names = others
        self.time = start
        self.ending: Ending = ""
        self.resumed = resumed
        self.capture: Callable[[], Tree] = lambda: None
        self.on_step: Callable[[int], None] = lambda number: None
        self._prospect = Prospect() if prospect is None else prospect
        self._worked, self._words = (0.0, 0) if resumed is None else (resumed.worked, resumed.words)
        self._step = 0 if resumed is None else resumed.number
        self._carry = carry
        self._took = took
        self._sealing = sealing
        self._reach = reach
        self._boxes: defaultdict[tuple[str, str], _Box] = defaultdict(_Box)
        self._ended: dict[str, tuple[_Gone, float]] = {}
        self._arrived: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._awaited: Counter[str] = Counter()
        self._began = self._restored = self._closed = False
        self._agreeing: asyncio.Future[tuple[float, tuple[str, Ending] | None]] | None = None

    def _require(self, role: str | None = None) -> None:
        """Refuse what a role cannot do now.

        Raises:
            ConfigError: the session has no such role, or the role is in the middle of a checkpoint.
            SessionError: the role has ended.
            Over: the role ends here.
        """
        where = f"role {self.me}"
        if role is not None and role not in self.names:
            raise ConfigError(
                f"the session has no role {role!r}.{nearest(role, self.names)}",
                where=where,
                remedy=f"talk to one of {sorted(self.names)}",
            )
        if self._closed:
            raise SessionError(
                f"role {self.me!r} has ended, and talks to nobody any more",
                where="session",
                remedy="await every send, recv and task of the role before it returns; peers of one session do not serve in another",
            )
        if self._agreeing is not None:
            raise ConfigError(
                "another coroutine of the role waits at a checkpoint",
                where=where,
                remedy="let the role's coroutines end, or join them with asyncio.gather, before the checkpoint, and give it no timeout of its own",
            )
        if role is not None and not self._began and self.resumed is not None and not self._restored:
            raise ConfigError(
                "a role that resumes talked before it restored its state",
                where=where,
                remedy="begin the role with `state = await peers.restore(initial)`",
            )
        self._began = self._began or role is not None
        self.go_on()

    async def send(self, role: str, message: Tree, channel: str = "") -> None:
        """Send a message to another role."""
        self._require(role)
        if self._sealing is not None:
            message = self._sealing.seal(role, message, channel)
        await self._carry(role, message, self.time, channel)
        self._words += 1

    async def recv(self, role: str, channel: str = "") -> Any:
        """Wait for the next message of another role."""
        self._require(role)
        box = self._boxes[role, channel]
        if box.waiter is not None:
            raise ConfigError(
                f"two coroutines wait for a message of role {role!r} on one channel, and which gets the next one would be chance",
                where=f"role {self.me}" + (f", channel {channel!r}" if channel else ""),
                remedy='give each coroutine a channel of its own: peers.channel("name")',
            )
        if not box.messages and role not in self._ended:
            box.waiter = asyncio.get_running_loop().create_future()
            self._awaited[role] += 1
            try:
                await box.waiter
            finally:
                self._awaited[role] -= 1
                box.waiter = None
        if not box.messages:
            gone, known = self._ended[role]
            if gone.ending:
                self._pass(max(self.time, known))
            raise gone.error(self.me, f"what role {self.me!r} waits for")
        message, arrival = box.messages.popleft()
        self._pass(max(self.time, arrival))
        self._words += 1
        self._received[role] += 1
        self._took(role)
        return message if self._sealing is None else self._sealing.open(role, message, channel)

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

    # ------------------------------------------------------------------ steps

    async def restore(self, initial: Tree) -> Any:
        """The state of the last agreed step; see ``Peers.restore``."""
        self._require()
        if self._began or self._restored:
            raise ConfigError(
                "restore after the role has talked, or a second time",
                where=f"role {self.me}",
                remedy="call it once, first: a role begins here again after a crash",
            )
        self._restored = True
        return initial if self.resumed is None else as_sent(self.resumed.state)

    async def checkpoint(self, state: Tree) -> None:
        """Agree on a step with all other roles; see ``Peers.checkpoint``."""
        self._require()
        where = f"role {self.me}"
        if not self._restored or self._reach is None:
            raise ConfigError(
                "checkpoint in a role that did not begin with restore",
                where=where,
                remedy="begin the role with `state = await peers.restore(initial)`, so that it can resume from here",
            )
        waits = sorted(role for role, count in self._awaited.items() if count)
        if waits:
            raise ConfigError(
                f"a checkpoint while another coroutine of the role waits for a message of {waits[0]!r}",
                where=where,
                remedy="join the role's coroutines before the checkpoint",
            )
        M.nbytes(state)  # what is no message tree is refused before anybody waits for the step
        self._pass(self.time + self._prospect.step)
        step = Step(self._step + 1, as_sent(state), self.capture(), self._worked, self._words)
        self._agreeing = asyncio.get_running_loop().create_future()
        await self._reach(step, self.time, dict(self._received))
        # If this is cancelled, the role stays here: the others may go on from a step that it did not see.
        known, lost = await self._agreeing
        self._agreeing = None
        if lost is not None:
            role, ending = lost
            self._pass(max(self.time, known))
            raise _Gone(role, ending).error(
                self.me, f"its state of checkpoint {step.number}, which role {self.me!r} waits for"
            )
        self._step = step.number
        self._pass(max(self.time, known))
        self.on_step(step.number)

    def note_decision(self, number: int, known: float, lost: tuple[str, Ending] | None = None) -> None:
        """Report that the checkpoint at which the role waits is decided.

        Args:
            number: its number.
            known: seconds on the session's clock.
            lost: the role that was lost, and how it ended; ``None`` if the step is agreed.
        """
        if self._agreeing is not None and not self._agreeing.done() and number == self._step + 1:
            self._agreeing.set_result((known, lost))

    # ------------------------------------------------------------------ time and end

    def go_on(self) -> None:
        """Check whether the role ends here.

        Raises:
            Over: it does.
        """
        self._pass(self.time)

    def finish(self) -> None:
        """End the role: the work that it did not report takes its time, as does its last step.

        Raises:
            Over: the role ended before.
        """
        share = max(0.0, 1.0 - self._worked)
        self._pass(self.time + share * self._prospect.work + self._prospect.step, share)

    def close(self) -> None:
        """Refuse to talk from now on: the role's function is over."""
        self._closed = True

    def _pass(self, moment: float, share: float = 0.0) -> None:
        """Let time pass on the role's clock, at most until its end."""
        if not self.ending:
            self.time, self.ending = self._prospect.find_reach(self.time, self._worked, self._words, moment, share)
        if self.ending:
            raise Over(self.ending)

    def put(self, source: str, message: Tree, arrival: float, channel: str = "") -> None:
        """Deliver a message that arrived."""
        self._arrived[source] += 1
        box = self._boxes[source, channel]
        box.messages.append((message, arrival))
        box.wake()

    def note_end(self, source: str, ending: Ending = "", arrival: float = 0.0) -> None:
        """Report that another role has ended: after its last message there is nothing to wait for.

        Args:
            source: the other role.
            ending: how it ended.
            arrival: seconds at which this is known here.
        """
        self._ended.setdefault(source, (_Gone(source, ending), arrival))
        for (role, _), box in self._boxes.items():
            if role == source:
                box.wake()

    @property
    def hears(self) -> bool:
        """Whether it waits for a message or a checkpoint. You can call this from any thread."""
        return self._agreeing is not None or any(list(self._awaited.values()))

    def waits(self) -> dict[str, int]:
        """The roles that this role waits for, and how many of their messages it has received; valid while its event loop is idle."""
        return {role: self._arrived[role] for role, count in self._awaited.items() if count}


class _Gone:
    """How another role has ended, so that there is nothing to wait for."""

    _WHY: ClassVar[dict[str, str]] = {"lost": "was lost", "late": "ran out of time", "told": "gave up"}

    def __init__(self, role: str, ending: Ending) -> None:
        self.role = role
        self.ending = ending

    def error(self, me: str, what: str) -> Exception:
        """The error for role ``me``, which waits for something."""
        if self.ending in self._WHY:
            return SessionError(
                f"role {self.role!r} {self._WHY[self.ending]}, and will not send {what}",
                where="session",
                remedy="let the session end, or catch this error and continue without the role: fed.session(..., quorum=...)",
            )
        return TaskError(
            f"role {self.role!r} has ended and will not send {what}",
            remedy="let the roles agree on the number of messages",
        )


class GuardedPeers:
    """Peers with the island's policy: it checks each message before it is sent.

    Args:
        peers: the peers.
        release: raises an error to keep a message from leaving.
        name: the channel that messages go over; ``""`` for the one that needs no name.
    """

    def __init__(self, peers: LocalPeers, release: Callable[[Tree], None], name: str = "") -> None:
        self._peers = peers
        self._release = release
        self._channel = name
        self._channels: dict[str, GuardedPeers] = {}

    @property
    def names(self) -> list[str]:
        """The other roles."""
        return self._peers.names

    def channel(self, name: str) -> PeerChannel:
        """A further stream of messages; see ``Peers.channel``."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"channel({name!r:.120})",
                where=f"role {self._peers.me}",
                remedy=f"use a name of 1 to {LONGEST_NAME} characters",
            )
        if name not in self._channels:
            self._channels[name] = GuardedPeers(self._peers, self._release, name)
        return self._channels[name]

    async def send(self, role: str, message: Tree) -> None:
        """Send a message to another role."""
        self._release(message)
        await self._peers.send(role, message, self._channel)

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role."""
        return await self._peers.recv(role, self._channel)

    async def broadcast(self, message: Tree, roles: Iterable[str] | None = None) -> None:
        """Send a message to several roles."""
        for role in self.names if roles is None else list(roles):
            await self.send(role, message)

    async def gather(self, roles: Iterable[str] | None = None, *, skip_lost: bool = False) -> dict[str, Any]:
        """Wait for the next message of each of several roles."""
        found: dict[str, Any] = {}
        for role in self.names if roles is None else list(roles):
            try:
                found[role] = await self.recv(role)
            except SessionError:
                if not skip_lost:
                    raise
        return found

    async def work(self, share: float = 1.0) -> None:
        """Report that a share of the work is done now."""
        await self._peers.work(share)

    async def restore(self, initial: Tree) -> Any:
        """The role's state at the last agreed step."""
        return await self._peers.restore(initial)

    async def checkpoint(self, state: Tree) -> None:
        """Agree on a step with all other roles."""
        await self._peers.checkpoint(state)


class Chains:
    """The clocks of the roles of a session, computed remotely from their reports of messages sent and received.

    If messages pass through one place, each carries its time. If they do not, one place can still compute the times: a role's clock moves only with
    what it receives, so the order of its own sends and receipts is enough (Lamport, "Time, clocks, and the ordering of events in a distributed
    system", 1978; here a message takes time as well).

    Reports of one role must arrive in order; reports of different roles may interleave in any way.

    Args:
        roles: the roles.
        start: seconds at which the session began.

    Attributes:
        times: seconds of each role's clock, as far as known.
    """

    def __init__(self, roles: Iterable[str], start: float) -> None:
        self.times = dict.fromkeys(roles, start)
        self._words: dict[str, deque[tuple[str, float | None]]] = {role: deque() for role in self.times}
        self._arrivals: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)

    def note_sent(self, role: str, target: str, seconds: float) -> None:
        """Report that a role has sent a message that takes this many seconds."""
        self._words[role].append((target, seconds))
        self._follow(role)

    def note_received(self, role: str, source: str) -> None:
        """Report that a role has received the next message of another: its clock becomes the later of its own and the message's."""
        self._words[role].append((source, None))
        self._follow(role)

    def _follow(self, role: str) -> None:
        """Process all reports that can be processed, of this role and then of roles that waited for it."""
        waiting = [role]
        while waiting:
            waiting += self._process_reports(waiting.pop())

    def _process_reports(self, role: str) -> Iterator[str]:
        """Process reports of one role; yield the roles that get something from it."""
        words = self._words[role]
        while words:
            other, seconds = words[0]
            if seconds is not None:
                self._arrivals[role, other].append(self.times[role] + seconds)
                yield other
            elif self._arrivals[other, role]:
                self.times[role] = max(self.times[role], self._arrivals[other, role].popleft())
            else:
                return
            words.popleft()


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
        agreed: what was recorded of the last agreed step when the session ran before; ``None`` if there is none.
        step: the number of the last agreed step.
        chains: the clocks of the roles, if some messages do not pass here.
        note_step: records an agreed step; it is durable when this returns.
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
        self.agreed: Mapping[str, Any] | None = None
        self.step = 0
        self.chains: Chains | None = None
        self.note_step: Callable[[Mapping[str, Any]], None] = lambda record: None
        self._expiry: asyncio.Event | None = None
        self._carry = carry
        self._transfer = transfer
        self._targets: dict[str, Put] = {}
        self._ends: dict[str, Gone] = {}
        self._steps: dict[str, Stepped] = {}
        self._reached: dict[str, _Reached] = {}
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
        return role in self._reached or (
            bool(waits) and all(r in self._live and self._carried[r, role] == had for r, had in waits.items())
        )

    def _judge(self) -> bool:
        verdict = self.verdict()
        if verdict.done() or not all(map(self._stuck, self._live)):
            return False
        if not self._live:
            verdict.set_result(None)
            return True
        self.fail(self._deadlock())
        return True

    def fail(self, error: BaseException) -> None:
        """End the session with an error, and all its roles."""
        verdict = self.verdict()
        if not verdict.done():
            verdict.set_exception(error)
            verdict.exception()  # the session's caller may be gone already

    def _deadlock(self) -> TaskError:
        lines = []
        for role in (r for r in self.parties if r in self._live):
            what = f"checkpoint {self.step + 1} of all roles"
            if role not in self._reached:
                what = "a message of " + " and ".join(repr(other) for other in self._waits[role])
            lines.append(f"{role!r} at {self.parties[role]} waits for {what}")
        return TaskError(
            f"the roles of the session wait for each other, and no message is on its way: {'; '.join(lines)}",
            where="session",
            remedy="let one of them send before it waits; every recv needs a send of the role that it names, every checkpoint one of each role",
        )

    def attach(self, role: str, put: Put, gone: Gone, stepped: Stepped = lambda number, known, lost: None) -> None:
        """Register where messages for a role go, and the callbacks for the end of another role and for a decided checkpoint."""
        self._targets[role] = put
        self._ends[role] = gone
        self._steps[role] = stepped

    # ------------------------------------------------------------------ steps

    def resume(self, start: float, *, found: bool) -> float:
        """Go on at the last agreed step, if there is one; call this before the roles begin.

        Args:
            start: seconds at which the session began.
            found: whether every role still has its state of the step; if not, the session begins anew, which is right too, only longer.

        Returns:
            Seconds at which the roles go on.
        """
        if self.agreed is None:
            return start
        if not found:
            self.agreed = None
            self.note_step({"step": 0})
            return start
        self.step = int(self.agreed["step"])
        for role, words in self.agreed["said"].items():
            self.said[role] = {other: Said(*counts) for other, counts in words.items()}
        return max(start, float(self.agreed["time"]))

    def note_reached(self, role: str, number: int, time: float, received: Mapping[str, int]) -> None:
        """Report that a role has made its state of a checkpoint durable, and waits for the others.

        Args:
            role: the role.
            number: number of the checkpoint.
            time: seconds on its clock.
            received: how many messages of each other role it has received since it began.

        Raises:
            MessageError: it is not the role's next checkpoint.
        """
        if number != self.step + 1 or role in self._reached or role not in self._live:
            raise MessageError(f"role {role!r} reports checkpoint {number} after {self.step}")
        self._reached[role] = _Reached(time, dict(received))
        self._agree()
        self._judge()

    def _agree(self) -> None:
        """Decide the checkpoint once each role has reached it or has ended."""
        if not self._reached or any(role not in self._reached for role in self._live):
            return
        number, there = self.step + 1, dict(self._reached)
        lost = next((role for role in self.parties if role in self.ends and self.ends[role][0]), None)
        ended = next((role for role in self.parties if role not in there), None)
        if lost is not None:
            self._reached = {}
            ending, known = self.ends[lost]
            for role in there:
                self._steps[role](number, known, (lost, ending))
        elif ended is not None:
            self.fail(self._uneven(number, next(iter(there)), ended))
        elif (travelling := self._travelling(there)) is not None:
            self.fail(travelling)
        else:
            known = max(one.time for one in there.values())
            if self.chains is not None:
                known = max(self.chains.times.values())
                self.chains.times = dict.fromkeys(self.chains.times, known)
            said = {role: {other: list(one) for other, one in words.items()} for role, words in self.said.items()}
            try:
                # Durable before any role hears of it: after a crash, no role may be ahead of the step that the program knows.
                self.note_step({"step": number, "time": known, "said": said})
            except AtollError as error:
                self.fail(error)
                return
            self.step, self._reached = number, {}
            for role in there:
                self._steps[role](number, known, None)

    @staticmethod
    def _uneven(number: int, waits: str, ended: str) -> TaskError:
        return TaskError(
            f"role {waits!r} waits at checkpoint {number}, and role {ended!r} has ended after {number - 1}",
            where="session",
            remedy="let every role of the session call checkpoint equally often",
        )

    def _travelling(self, there: Mapping[str, _Reached]) -> TaskError | None:
        """The error for messages on their way at a checkpoint: a resumed role would wait for them for ever."""
        for source, target in ((a, b) for a in there for b in there if a != b):
            count = self._carried[source, target] - there[target].received.get(source, 0)
            if count:
                return TaskError(
                    f"at checkpoint {self.step + 1}, role {target!r} has not received {count} message{'s' * (count != 1)} of role {source!r}",
                    where="session",
                    remedy="receive every message before the checkpoint, or send it after",
                )
        return None

    # ------------------------------------------------------------------ ends

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
        self._reached.pop(role, None)
        self._agree()
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

    def carry(self, source: str, target: str, message: Tree, sent: float, channel: str = "") -> float:
        """Carry one message; return the seconds that it takes."""
        nbytes = M.nbytes(message)
        seconds = self.count(source, target, nbytes if self.sealed else sealed_nbytes(nbytes))
        self._targets[target](source, message, sent + seconds, channel)
        return seconds

    def process_frame(self, frame: Any) -> float:
        """Process a frame of a role elsewhere: that it waits, that it has reached a checkpoint, or a message, whose seconds are returned."""
        if frame["op"] == "waits":
            self.waiting(frame["role"], dict(frame["for"]))
            return 0.0
        if frame["op"] == "reached":
            self.note_reached(frame["role"], frame["number"], frame["time"], dict(frame["received"]))
            return 0.0
        return self.carry(frame["source"], frame["target"], frame["message"], frame["time"], frame.get("channel", ""))

    def peers(
        self, role: str, start: float, resumed: Step | None = None, keep: Callable[[Step], None] = lambda step: None
    ) -> LocalPeers:
        """Peers for a role that runs in this process.

        Args:
            role: the role.
            start: seconds at which it begins or goes on.
            resumed: the step that it goes on from.
            keep: makes its state of a step durable.
        """

        async def carry(target: str, message: Tree, sent: float, channel: str) -> None:
            self.carry(role, target, as_sent(message), sent, channel)

        async def reach(step: Step, time: float, received: dict[str, int]) -> None:
            keep(step)
            self.note_reached(role, step.number, time, received)

        others = [r for r in self.parties if r != role]
        peers = LocalPeers(role, others, carry, start, prospect=self.prospects[role], resumed=resumed, reach=reach)
        self.attach(role, peers.put, peers.note_end, peers.note_decision)
        return peers


class _Reached(NamedTuple):
    """A role at a checkpoint: seconds on its clock, and the messages that it has received from each other role."""

    time: float
    received: dict[str, int]


def as_sent(message: Tree) -> Tree:
    """A message that its sender can no longer change: its arrays are copied, as they are when it crosses a link."""
    return T.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, message)
