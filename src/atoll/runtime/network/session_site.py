"""A site's half of sessions: its roles, in an event loop of their own. An idle loop means that they wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.errors import CheckpointError, MessageError, TaskError
from atoll.core.execution.session import Deliver, LocalPeers, Reach, Step, as_sent
from atoll.core.requests.wire import pack_ran, unpack_request
from atoll.core.sealing import sealed_nbytes
from atoll.core.time.clock import IdleSelector, WatchedLoop, watching
from atoll.core.time.deadline import Ending
from atoll.engines.link import LinkClosed, Poster, feed
from atoll.engines.worker import Actors, Key, answer_of, sendable

from .session_keys import SessionKeys

if TYPE_CHECKING:
    from atoll.core.execution.host import Host

    from .site_state import PendingReplies

__all__ = ["WORDS", "Account", "DirectLinks", "NeighbourLost", "Roles", "make_refusal", "require_at"]


# ------------------------------------------------------------------ direct links: messages between roles of a session go from site to site, and the server keeps count
#
# Nouns:
#
# * A *neighbour* is another site that this one's job process has a link to. Links exist before work begins, or they are
# not used; `atoll.runtime.site.neighbours` makes them.
# * A *pair* of roles is direct in a session when both of their sites report, before any message, a link to each other.
# All messages between these two roles in that session go over it; every other message passes through the server. A
# route never changes later.
# * A *word* is what a role's site reports to the server: ``["sent", role, bytes]`` of each direct message,
# ``["took", role]`` of each message that it has taken, whichever way it came. Words go in the order of the role's own
# actions, many in a frame. They are sent before anything for which the server needs them: a message through the server,
# the report that the role only waits, its end.
#
# The path of a message from role ``a`` at site A to role ``b`` at site B:
#
# ```
# server  ─ meet ────► A, B     roles are announced: messages to them are kept until they begin; each site answers which links it has
# server  ─ role ────► A, B     the roles begin, with the names and sites of those that they reach directly
# A       ─ hand ────► B        the message itself, over the link; the role's end, if it ended well, follows its last message ("gone")
# A       ─ words ───► server   ["sent", "b", bytes]: meters, `said`, the count of messages in transit
# B       ─ words ───► server   ["took", "a"]: the clock of b (`Chains`)
# B       ─ waits ───► server   after its words: which roles b waits for, and how many of their messages it has taken
# A, B    ─ reached ─► server   after their words: the role's state of a checkpoint is durable at its site
# server  ─ step ────► A, B     all have reached it, and the server has written that down: the roles go on
# ```
#
# The verdict that all roles wait for each other stays right although counts arrive later than messages, because a role's
# words go before its report that it waits. Suppose the server saw all roles wait and all counts agree, and yet some role
# went on after its report. The first to do so took a message that another role sent after reporting that it waits, as all
# earlier ones were counted. So that role went on even earlier: a contradiction.
#
# In virtual time, a session whose model of devices lets roles work, or loses them, passes through the server: each
# message must carry its time.
#
# A link that ends while a role may need it ends the job's process, and so the attempt; the next attempt finds out again
# which links there are.


class NeighbourLost(LinkClosed):
    """The link to another site ended while a role may need it."""


class DirectLinks:
    """The links of a site's job process to those of other sites.

    Args:
        links: site -> link: ``send(tree)``, ``recv() -> tree``, which raises ``LinkClosed``.
    """

    def __init__(self, links: Mapping[str, Any]) -> None:
        self._links = dict(links)
        self._posters = {site: Poster(link) for site, link in links.items()}

    @property
    def names(self) -> list[str]:
        """Return the sites that have a link now."""
        return sorted(self._links)

    def send(self, site: str, frame: Mapping[str, Any], done: Callable[[Exception | None], None]) -> None:
        """Send a frame; if the link has ended, its listener reports that."""
        if site in self._links:
            self._posters[site].send(dict(frame), done)
        else:
            done(None)

    async def listen(self, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]) -> None:
        """Listen to all links until cancelled.

        Args:
            heard: called with the site and each of its frames.
            ended: called with the site when its link has ended, and the reason: ``LinkClosed``, or what arrived was not
                a message.
        """
        async with asyncio.TaskGroup() as group:
            for site in self.names:
                group.create_task(self._listen(site, heard, ended))
            await asyncio.get_running_loop().create_future()

    async def _listen(
        self, site: str, heard: Callable[[str, Any], None], ended: Callable[[str, Exception], None]
    ) -> None:
        def take(frame: Any) -> bool:
            heard(site, frame)
            return True

        try:
            await feed(self._links[site], take)
        except (LinkClosed, MessageError) as error:
            del self._links[site]
            ended(site, error)


def require_at(site: str, role: str, places: Mapping[str, str]) -> None:
    """Refuse a site that sends in the name of a role at another site.

    Raises:
        TaskError: the role is not at the site.
    """
    if places.get(role) != site:
        raise TaskError(
            f"it spoke for role {role!r:.100}, who is at {places.get(role, 'no site')!r}",
            where=f"site {site}",
            remedy="check what runs there: the message was refused",
        )


def make_refusal(site: str, error: Exception) -> TaskError:
    """Return the error for a site that sends a malformed frame."""
    return TaskError(
        f"what it sent directly is not a message of a role: {type(error).__name__}: {error}",
        where=f"site {site}",
        remedy="run the same version of Atoll at every site; check what runs there",
    )


# ------------------------------------------------------------------ a site's half of sessions
#
# A site's half of sessions: its roles, in an event loop of their own. An idle loop means that they wait for each other.


WORDS = 512
"""Words of a role that are collected at most."""
_SMALL = 1 << 16
"""Bytes; messages up to this size are copied, so that the sender need not wait until another thread has sent them."""
_MANY = 64
"""Every so many copied messages the sender waits for one, which bounds those in transit."""


class Account:
    """The words of one role, in the order of its actions.

    Args:
        session: its number.
        role: the role.
        reached: the roles that it reaches directly -> their site; None if no roles in the session reach each other, and
            the server sees all.
        say: sends a frame to the server.

    Attributes:
        reached: see above; empty for None.
    """

    def __init__(
        self, session: int, role: str, reached: Mapping[str, str] | None, say: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self.reached = dict(reached or {})
        self._kept = reached is not None
        self._frame = {"op": "words", "session": session, "role": role}
        self._say = say
        self._words: list[list[Any]] = []

    def note(self, *word: Any) -> None:
        """Keep a word."""
        if self._kept:
            self._words.append(list(word))
            if len(self._words) >= WORDS:
                self.tell()

    def tell(self) -> None:
        """Send the words so far to the server."""
        if self._words:
            self._say({**self._frame, "words": self._words})
            self._words = []


class Roles:
    """Runs roles and hands them messages from others.

    Args:
        link: to the server; the loop in which roles are handed over owns it.
        host: runs tasks, keeps states, journal and ledger.
        registry: tasks and stages that the program registered by name.
        pending: keeps what roles gave until all have ended.
        neighbours: links to other sites.
        broken: called with what other sites did that ends this site's part.
    """

    def __init__(
        self,
        link: Any,
        host: Host,
        registry: Mapping[str, Any],
        pending: PendingReplies,
        neighbours: DirectLinks,
        broken: Callable[[Exception], None],
    ) -> None:
        self._poster = Poster(link)
        self._host = host
        self._registry = registry
        self._pending = pending
        self._neighbours = neighbours
        self._broken = broken
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: WatchedLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._actors = Actors()
        self._accounts: dict[Key, Account] = {}
        self._early: dict[Key, list[Any]] = {}
        self._ordered: set[Key] = set()
        self._places: dict[int, dict[str, str]] = {}
        self._sealing = host.executor.sealing
        self._keys = SessionKeys(self._sealing)

    # ------------------------------------------------------------------ called in the link's loop

    def meet(self, frame: Any) -> None:
        """Announce a session: roles draw keys for it, and messages to roles here wait until they begin."""
        self._inside(self._meet, {**frame, "neighbours": self._neighbours.names})

    def expect(self, frame: Any) -> None:
        """Announce a role that begins once the orders before it are done; messages to it wait meanwhile."""
        self._inside(self._announce, frame)

    def start(self, frame: Any) -> None:
        """Begin a role."""
        self._inside(self._begin, frame)

    def handle(self, frame: Any) -> None:
        """Hand over a message of another role, announce that one has ended, or stop a session."""
        self._inside(self._stop if frame["op"] == "stop" else self._hand, frame)

    def take_message(self, site: str, frame: Any) -> None:
        """Take a message of another site to a role here."""
        self._inside(self._hear, (site, frame))

    def note_link_end(self, site: str, error: Exception) -> None:
        """Note that the link to another site has ended."""
        self._inside(self._lose, (site, error))

    def close(self) -> None:
        """End the loop and its thread; nothing more is sent."""
        self._closed = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
            self._loop = None

    @property
    def playing(self) -> bool:
        """Tell whether a role runs here."""
        return self._actors.some

    @property
    def busy(self) -> bool:
        """Tell whether a role does something other than wait for another."""
        return self._actors.busy

    def _inside(self, call: Any, frame: Any) -> None:
        if self._loop is None:
            self._home = asyncio.get_running_loop()
            self._loop = WatchedLoop(IdleSelector())
            self._thread = threading.Thread(target=self._live, args=(self._loop,), name="atoll-roles", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(call, frame)

    def _say(
        self,
        frame: Mapping[str, Any],
        site: str | None = None,
        done: Callable[[Exception | None], None] = lambda error: None,
    ) -> bool:
        """Send to the server or to another site, from the link's own loop; return false at the end, when what roles do is not news.

        Args:
            frame: what to send.
            site: another site; ``None`` is the server.
            done: called in the link's loop once it is sent, or with the error that kept it back.
        """
        if self._home is None or self._closed:
            return False
        self._home.call_soon_threadsafe(self._send, frame, site, done)
        return True

    def _send(self, frame: Mapping[str, Any], site: str | None, done: Callable[[Exception | None], None]) -> None:
        if site is None:
            self._poster.send(frame, done)
        else:
            self._neighbours.send(site, frame, done)

    # ------------------------------------------------------------------ called in the roles' loop

    def _live(self, loop: WatchedLoop) -> None:
        asyncio.set_event_loop(loop)

        async def watch() -> None:
            with watching(self._idle):
                await asyncio.get_running_loop().create_future()

        watcher = loop.create_task(watch())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.gather(watcher, *asyncio.all_tasks(loop), return_exceptions=True))
        loop.close()

    async def _send_frame(self, frame: Mapping[str, Any], site: str | None = None) -> None:
        """Send it, and return once the frame may change; meanwhile the loop is not idle. If cancelled, it is still sent."""
        loop = self._loop
        if loop is None:
            return
        future: asyncio.Future[None] = loop.create_future()

        def went(error: Exception | None) -> None:  # in the link's loop
            with contextlib.suppress(RuntimeError):  # the roles' loop may be over
                loop.call_soon_threadsafe(finish, error)

        def finish(error: Exception | None) -> None:
            loop.idle.helpers -= 1
            if error is None or isinstance(error, LinkClosed):  # whoever reads the link reports its end
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # the sender may be gone already

        loop.idle.helpers += 1
        if self._say(frame, site, went):
            await asyncio.shield(future)
        else:
            loop.idle.helpers -= 1

    def _idle(self) -> bool:
        """Tell whether the loop is idle; then report which roles wait for which, if that is news."""
        waiting = self._actors.waiting()
        for account in self._accounts.values():
            account.tell()
        for frame in waiting:
            self._say(frame)
        return False

    def _meet(self, frame: Any) -> None:
        session = frame["session"]
        self._places[session] = dict(frame["places"])
        for role in frame["here"]:
            self._early[session, role] = []
        keys = self._keys.draw(session, frame["here"], frame["places"])
        self._say({"op": "answer", "number": frame["number"], "neighbours": frame["neighbours"], "keys": keys})

    def _announce(self, frame: Any) -> None:
        key = (frame["session"], frame["role"])
        self._ordered.add(key)
        self._early.setdefault(key, [])

    def _hear(self, told: tuple[str, Any]) -> None:
        site, frame = told
        try:
            places = self._places.get(frame["session"])
            if places is not None:  # else the session is over
                require_at(site, frame["source"], places)
                self._hand(frame)
        except TaskError as error:
            self._break(error)
        except (KeyError, TypeError) as error:
            self._break(make_refusal(site, error))

    def _lose(self, told: tuple[str, Exception]) -> None:
        site, error = told
        if not isinstance(error, LinkClosed):
            self._break(make_refusal(site, error))
        elif any(site in account.reached.values() for account in self._accounts.values()):
            self._break(NeighbourLost(f"the link to site {site!r} ended in the middle of a session: {error}"))

    def _break(self, error: Exception) -> None:
        """End the site's part of the job."""
        if self._home is not None:
            self._home.call_soon_threadsafe(self._broken, error)

    def _hand(self, frame: Any) -> None:
        key = (frame["session"], frame["role"])
        if key in self._early:
            self._early[key].append(frame)
        else:
            self._actors.hand(frame)

    def _stop(self, frame: Any) -> None:
        self._actors.stop(frame["session"])
        for key in [key for key in self._early if key[0] == frame["session"]]:
            if key in self._ordered:
                self._early[key].append(frame)
            else:  # it was announced, and will not begin
                del self._early[key]
        self._tidy(frame["session"])

    def _begin(self, frame: Any) -> None:
        session, role = key = frame["session"], frame["role"]
        account = self._accounts[key] = Account(session, role, frame["direct"], self._say)
        gone = sorted(set(account.reached.values()) - set(self._neighbours.names))
        if gone:  # since the session was announced: nobody could be told then
            self._break(NeighbourLost(f"the link to site {gone[0]!r} ended before role {role!r} began"))

        def took(source: str) -> None:
            account.note("took", source)

        events: list[Any] = []
        party = self._host.executor.roster.name(frame["position"])
        found = self._host.journal.step(frame["request"]["id"], frame["position"], frame["step"])
        reach, resumed = self._reacher(frame, account, events), None if found is None else Step(**found)
        peers = self._keys.peers(frame, party, self._carrier(key, account), took, reach, resumed)
        self._actors.begin(key, peers, self._role(frame, peers, events))
        self._ordered.discard(key)
        for said in self._early.pop(key, ()):
            if said["op"] == "stop":
                self._actors.stop(session)
            else:
                self._actors.hand(said)

    def _carrier(self, key: Key, account: Account) -> Deliver:
        """Return what sends a role's messages: as they are now, whatever the role does to its arrays next."""
        (session, role), sends = key, 0

        async def carry(target: str, message: Any, sent: float, channel: str) -> None:
            nonlocal sends
            size, sends = M.nbytes(message), sends + 1
            waits = size > _SMALL or sends % _MANY == 0
            kept = (
                message if waits or self._sealing.real else as_sent(message)
            )  # what is sealed is the sender's no more
            said = {"session": session, "source": role, "message": kept, "time": sent}
            if channel:
                said["channel"] = channel
            site = account.reached.get(target)
            if site is None:
                account.tell()
                said |= {"op": "pass", "target": target}
            else:
                account.note("sent", target, size if self._sealing.real else sealed_nbytes(size))
                said |= {"op": "hand", "role": target}
            if waits:
                await self._send_frame(said, site)
            else:
                self._say(said, site)

        return carry

    def _reacher(self, frame: Any, account: Account, events: list[Any]) -> Reach:
        """Return what makes a role's state of a checkpoint durable here, and tells the server that it is, behind all that the role has said."""
        base = {"op": "reached", "session": frame["session"], "role": frame["role"]}

        async def reach(step: Step, time: float, received: dict[str, int]) -> None:
            request = unpack_request({**frame["request"], "message": None}, self._registry)
            self._host.keep_step(request, frame["position"], step)
            account.tell()
            self._say({**base, "number": step.number, "time": time, "received": received, "events": [*events]})
            events.clear()

        return reach

    async def _role(self, frame: Any, peers: LocalPeers, events: list[Any]) -> None:
        answer = await answer_of(self._play(frame, peers, events), self._host.executor.redact_error)
        if "error" not in answer:
            self._tell_end((frame["session"], frame["role"]), peers, answer["ran"]["ending"])
        self._end((frame["session"], frame["role"]))
        self._say({"op": "answer", "number": frame["number"], "events": events, **answer})

    async def _play(self, frame: Any, peers: LocalPeers, events: list[Any]) -> dict[str, Any]:
        def spend(event: Any, party: str | Sequence[str], request: str) -> None:
            self._host.spend(event, party, request)
            events.append({"event": event.pack(), "party": party, "request": request})

        request = unpack_request({**frame["request"], "message": None}, self._registry)
        if frame["step"] and peers.resumed is None:
            raise CheckpointError(
                f"the role's state of checkpoint {frame['step']} is gone",
                where=request.id,
                remedy="restore the site's folder of the job, or submit the job again",
            )
        table, position = self._host.table(request), frame["position"]
        leaves = lambda: self._host.declare(request, [position], spend)  # noqa: E731
        ran = await self._host.executor.role(request, position, peers, table, spend, leaves)
        ran = self._host.release(request, ran, "role")
        if ran.reply.error is not None and not ran.ending:
            raise ran.reply.error
        self._pending.hold(request, ran)
        return sendable({"ran": pack_ran(replace(ran, left={}))})

    def _tell_end(self, key: Key, peers: LocalPeers, ending: Ending) -> None:
        """Tell the roles that this one talks to directly that it has ended, behind its last message.

        After an error the server stops them. If they learned of the end sooner, their own failure might be reported
        instead of the error.
        """
        (session, role), account = key, self._accounts[key]
        account.tell()
        for other, site in account.reached.items():
            said = {"op": "gone", "session": session, "role": other, "source": role}
            self._say({**said, "ending": ending, "time": peers.time}, site)

    def _end(self, key: Key) -> None:
        """Handle a role's end: report to the server what it has said so far."""
        self._accounts.pop(key).tell()
        self._actors.end(key)
        self._tidy(key[0])

    def _tidy(self, session: int) -> None:
        """Forget where the roles are, once no role of the session is here any more."""
        if not self._actors.playing(session) and not any(other == session for other, _ in self._early):
            self._places.pop(session, None)
            self._keys.forget(session)
