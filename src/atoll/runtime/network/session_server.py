"""The server's half of sessions between sites: it relays or counts messages, agrees on steps, and keeps all of a session or nothing."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.core.errors import MessageError, SessionError, TaskError
from atoll.core.execution.session import LONGEST_NAME, Chains
from atoll.core.requests.request import Request, TaskResult, cut_off
from atoll.core.time.deadline import Ending
from atoll.core.time.meter import Said

from .session_keys import keys_in
from .shared import bare
from .validation import names_in, ran_of, text_in, whole_in, wrong

if TYPE_CHECKING:
    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.session import Switch

    from .site_link import SiteLink, Sites

__all__ = ["LiveSession", "ServerSessions"]

T = TypeVar("T")


Cast = dict[str, tuple[Request, int]]
"""Role -> what it is asked to do, and the position of its party."""


@dataclass
class LiveSession:
    """A session in progress.

    Attributes:
        switch: relays and counts.
        roles: the cast.
        direct: role -> the roles that it reaches directly -> their site; None if nobody has a link.
        keys: role -> other role -> the key that it has drawn for its messages to that role.
        cut: roles that the server ended: their sites keep nothing of them.
    """

    switch: Switch
    roles: Cast
    direct: dict[str, dict[str, str]] | None = None
    keys: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def require(self, role: str) -> str:
        """Return a role of the session.

        Raises:
            MessageError: the session has no such role.
        """
        if role not in self.roles:
            raise MessageError(f"the session has no role {role[:80]!r}")
        return role

    def take_frame(self, speaker: str, frame: Any) -> None:
        """Handle a role's frame: a message, a report that it waits, or a report of direct messages.

        Raises:
            MessageError: the frame has the wrong form.
        """
        if frame["op"] == "waits":
            for role, had in frame["for"]:
                text_in({"for": role}, "for")
                whole_in({"had": had}, "had")
            self.switch.process_frame(frame)
        elif frame["op"] == "words":
            self._note(speaker, frame["words"])
        elif frame["op"] == "reached":
            self._reach(speaker, frame)
        else:
            self._carry(speaker, frame)

    def _reach(self, role: str, frame: Any) -> None:
        """Take the report that a role has made its state of a checkpoint durable."""
        _moment_in(frame)
        received = frame["received"] if isinstance(frame.get("received"), dict) else {"": None}
        for other in received:
            self.require(other)
            if whole_in(received, other) < 0:
                raise MessageError(f"{received[other]} messages of {other!r}")
        whole_in(frame, "number")
        self.switch.process_frame(frame)

    def _carry(self, source: str, frame: Any) -> None:
        """Pass a message on."""
        target = self.require(text_in(frame, "target"))
        _moment_in(frame)
        if len(text_in(frame, "channel") if "channel" in frame else "") > LONGEST_NAME:
            raise MessageError(f"a channel's name of {len(frame['channel'])} characters")
        seconds = self.switch.process_frame(frame)
        if self.switch.chains is not None:
            self.switch.chains.note_sent(source, target, seconds)

    def _note(self, role: str, words: Any) -> None:
        """Count a role's direct messages, and follow its clock."""
        chains = self.switch.chains
        if chains is None or not isinstance(words, list):
            raise MessageError("words of a role that talks to nobody directly")
        for word, told, *size in words:
            other = self.require(text_in({"role": told}, "role"))
            if word == "took":
                chains.note_received(role, other)
                continue
            nbytes = whole_in({"bytes": size[0] if size else None}, "bytes")
            if nbytes < 0 or other == role:
                raise MessageError(f"{nbytes} bytes from {role!r} to {other!r}")
            chains.note_sent(role, other, self.switch.count(role, other, nbytes, direct=True))


class ServerSessions:
    """Sessions in progress.

    Args:
        sites: where the parties of roles live.
        choices: of the engine; which sites spoke directly is noted there.
        note_events: takes what the party at a position has spent.
        spares: whether the program goes on without the roles of a lost site.
        direct: let roles speak over links between their sites, where there are any.
    """

    def __init__(
        self,
        sites: Sites,
        choices: dict[str, Any],
        note_events: Callable[[Any, int], None],
        *,
        spares: Callable[[SiteLink], bool],
        direct: bool,
    ) -> None:
        self._sites = sites
        self._choices = choices
        self._note_events = note_events
        self._spares = spares
        self._direct = direct
        self._opened: RunContext | None = None
        self._live: dict[int, LiveSession] = {}
        self._numbers = itertools.count()

    def open(self, world: RunContext) -> None:
        """Say which world it is that the sessions are of."""
        self._opened = world

    @property
    def _world(self) -> RunContext:
        if self._opened is None:
            raise RuntimeError("the engine is not open")
        return self._opened

    def take_frame(self, site_link: SiteLink, frame: Any) -> None:
        """Handle a role's frame: a message, a report that it waits, or a report of direct messages.

        Raises:
            AtollError: the role lives elsewhere, or the frame has the wrong form.
        """
        live = self._live.get(whole_in(frame, "session"))
        if live is None:
            return
        speaker = live.require(text_in(frame, "source" if frame["op"] == "pass" else "role"))
        self._sites.require_home(site_link, live.roles[speaker][1], self._world.roster.name)
        if frame["op"] == "reached":  # what it has spent is written down before the step can be agreed
            self._note_events(frame.get("events"), live.roles[speaker][1])
        live.take_frame(speaker, frame)

    async def hold(self, roles: Cast, switch: Switch, start: float) -> dict[str, TaskResult]:
        """Run each role at its party; return what each gave.

        Raises:
            SessionError: too few roles ended well; nothing of them is kept.
        """
        known, found = await self._find_known(roles, switch)
        if known is not None:
            missing = {role for role in roles if role not in known}
            for role, ran in known.items():
                switch.repeat(role, ran.said, ran.ending, ran.time)
            for role in missing:
                known[role] = cut_off(roles[role][1], "lost", start)
                switch.ended(role, "lost", start)
            await self._keep(roles, known, {role: ran.said for role, ran in known.items()}, missing, sealed=False)
            return known
        start = switch.resume(start, found=found)
        session = next(self._numbers)
        live = self._live[session] = LiveSession(switch, roles)
        try:
            rans = await self._run(session, roles, live, start)
        finally:
            del self._live[session]
        try:
            switch.require_quorum()
        except SessionError:
            for request, position in roles.values():
                frame = {"op": "discard", "id": request.id, "positions": [position]}
                self._sites.of(position).post(frame)
            raise
        sealed = any(ran.sealed or ran.ending for ran in rans.values())
        await self._keep(roles, rans, switch.said, live.cut, sealed=sealed)
        return rans

    async def _find_known(self, roles: Cast, switch: Switch) -> tuple[dict[str, TaskResult] | None, bool]:
        """Return the results of a session whose every role is in its site's journal, and whether all have their states of the last agreed step.

        A session is never repeated in part.
        """
        if not self._world.resume:
            return None, False
        frame = {"op": "known", "step": 0 if switch.agreed is None else int(switch.agreed["step"])}

        def read(role: str) -> Callable[[Any], tuple[TaskResult | None, bool]]:
            return lambda answer: (
                None if answer["ran"] is None else self._ran(answer, *roles[role]),
                answer["step"] is True,
            )

        wanted = [*roles] if switch.known is None else switch.known
        answers = await asyncio.gather(*(self._call(role, roles, frame, read(role)) for role in wanted))
        found = {role: ran for role, (ran, _) in zip(wanted, answers, strict=True) if ran is not None}
        steps = len(wanted) == len(roles) and all(step for _, step in answers)
        return found if len(found) == len(wanted) else None, steps

    @staticmethod
    def _ran(answer: Any, request: Request, position: int) -> TaskResult:
        ran = ran_of(answer, position)
        if request.task.schema is not None and ran.reply.usable:
            request.task.schema.require_reply(ran.reply.value)
        if bool(ran.ending) != (ran.reply.error is not None):
            raise wrong(f"a role that ended {ran.ending!r} gives {'no result' if ran.reply.error else 'a result'}")
        return ran

    async def _call(self, role: str, roles: Cast, frame: dict[str, Any], read: Callable[[Any], T]) -> T:
        request, position = roles[role]
        frame = {**frame, "request": bare(request), "position": position}
        return await self._sites.of(position).call(frame, read)

    async def _run(self, session: int, roles: Cast, live: LiveSession, start: float) -> dict[str, TaskResult]:
        site_links = {self._sites.of(position) for _, position in roles.values()}
        calls: list[asyncio.Task[TaskResult]] = []
        clock = asyncio.create_task(self._expire(session, site_links, live.switch))
        try:
            if not await self._met(session, site_links, live, start):
                return self._none(live)
            for role in roles:
                self._attach(session, role, roles[role][1], live)
            calls += [asyncio.create_task(self._role(session, role, roles, start, live)) for role in roles]
            rans, _ = await asyncio.gather(asyncio.gather(*calls), live.switch.verdict())
        except BaseException:
            for site_link in site_links:
                site_link.post({"op": "stop", "session": session})
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        finally:
            clock.cancel()
        found = dict(zip(roles, rans, strict=True))
        chains = live.switch.chains
        if chains is None:
            return found
        timed = {role: replace(ran, time=chains.times[role]) for role, ran in found.items()}
        live.switch.ends.update({role: (ran.ending, ran.time) for role, ran in timed.items()})
        return timed

    async def _met(self, session: int, site_links: set[SiteLink], live: LiveSession, start: float) -> bool:
        """Tell whether all sites are there. If the program goes on without lost sites, one that is gone before the session begins is not an error."""
        try:
            await self._meet(session, site_links, live, start)
        except TaskError:
            dead = [site_link for site_link in site_links if not site_link.alive]
            if not dead or not all(map(self._spares, dead)):
                raise
            return False
        return True

    def _none(self, live: LiveSession) -> dict[str, TaskResult]:
        """Return the results of a session that cannot begin."""
        now, found = self._world.clock.now(), {}
        for role, (_, position) in live.roles.items():
            ending: Ending = "told" if self._sites.of(position).alive else "lost"
            live.switch.ended(role, ending, now)
            found[role] = cut_off(position, ending, now)
        return found

    async def _expire(self, session: int, site_links: set[SiteLink], switch: Switch) -> None:
        """Stop all roles when a deadline on a real clock has passed."""
        await switch.expiry.wait()
        for site_link in site_links:
            site_link.post({"op": "stop", "session": session})

    async def _meet(self, session: int, site_links: set[SiteLink], live: LiveSession, start: float) -> None:
        """Before any message, let every role draw keys, and find out which sites have links: this decides the route of every message of the session."""
        places = {role: self._sites.of(position).name for role, (_, position) in live.roles.items()}

        async def ask(site_link: SiteLink) -> tuple[str, set[str]]:
            here = [role for role, place in places.items() if place == site_link.name]
            frame = {"op": "meet", "session": session, "places": places, "here": here}

            def read(answer: Any) -> set[str]:
                live.keys.update(keys_in(answer, here, places))
                return set(names_in(answer, "neighbours"))

            return site_link.name, await site_link.call(frame, read)

        linked = dict(await asyncio.gather(*map(ask, site_links)))
        live.switch.sealed = set(live.keys) == set(live.roles)
        if not self._direct or live.switch.timed:  # what moves a role's clock at its site is reported with its messages
            return
        direct = {role: find_reach(role, places, linked) for role in live.roles}
        if any(direct.values()):
            live.direct, live.switch.chains = direct, Chains(live.roles, start)
        pairs = {" and ".join(sorted((places[r], there))) for r, at in direct.items() for there in at.values()}
        self._choices["direct"] = sorted({*self._choices.get("direct", []), *pairs})

    def _attach(self, session: int, role: str, position: int, live: LiveSession) -> None:
        site_link, base = self._sites.of(position), {"session": session, "role": role}

        def put(source: str, message: Any, arrival: float, channel: str) -> None:
            said = {**base, "op": "hand", "source": source, "message": message, "time": arrival}
            site_link.post({**said, "channel": channel} if channel else said)

        def send_step(number: int, known: float, lost: tuple[str, str] | None) -> None:
            site_link.post({**base, "op": "step", "number": number, "time": known, "lost": lost})

        def send_end(source: str, ending: str, time: float) -> None:
            # Follows its last message; if messages go directly, its site reports it.
            if live.direct is None or role not in live.direct[source] or source in live.cut:
                site_link.post({**base, "op": "gone", "source": source, "ending": ending, "time": time})

        live.switch.attach(role, put, send_end, send_step)

    async def _role(self, session: int, role: str, roles: Cast, start: float, live: LiveSession) -> TaskResult:
        others = [other for other in roles if other != role]
        frame = {"op": "role", "session": session, "role": role, "others": others, "start": start}
        frame["direct"] = None if live.direct is None else live.direct[role]
        name = self._world.roster.name
        frame["cast"] = {r: [name(at), request.id, live.keys.get(r, {})] for r, (request, at) in roles.items()}
        frame["step"] = live.switch.step
        frame["prospect"] = live.switch.prospects[role].pack()

        def read(answer: Any) -> TaskResult:
            ran = self._ran(answer, *roles[role])
            self._note_events(answer["events"], roles[role][1])
            return ran

        ran = await self._unless_cut(role, asyncio.ensure_future(self._call(role, roles, frame, read)), live)
        live.switch.ended(role, ran.ending, ran.time)
        return ran

    async def _unless_cut(self, role: str, call: asyncio.Future[TaskResult], live: LiveSession) -> TaskResult:
        """Return what a role gave, unless the deadline passes on a real clock, or its site is lost and the program goes on without it."""
        position = live.roles[role][1]
        expiry = asyncio.ensure_future(live.switch.expiry.wait())
        try:
            waited: list[asyncio.Future[Any]] = [call, expiry]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            live.cut.add(role)
            return cut_off(position, "late", self._world.clock.now())
        except TaskError:
            site_link = self._sites.of(position)
            if not self._spares(site_link) or site_link.alive:
                raise
            live.cut.add(role)
            return cut_off(position, "lost", self._world.clock.now())
        finally:
            expiry.cancel()
            call.cancel()

    async def _keep(
        self,
        roles: Cast,
        rans: dict[str, TaskResult],
        said: Mapping[str, Mapping[str, Said]],
        cut: set[str],
        *,
        sealed: bool,
    ) -> None:
        """Write down what each role left behind at its site, before the results are released: all roles have ended."""
        if set(rans) != set(roles):
            raise TaskError("a session ended in part", remedy="resume the job from its last checkpoint")
        calls = []
        for role, (request, position) in roles.items():
            if role in cut:
                continue
            frame = {"op": "kept", "id": request.id, "position": position, "sealed": sealed}
            frame["said"] = {other: list(words) for other, words in said[role].items()}
            frame["time"] = rans[role].time
            calls.append(self._sites.of(position).call(frame, lambda answer: None))
        await asyncio.gather(*calls)


def _moment_in(frame: Any) -> None:
    """Refuse a time that is none."""
    if type(frame["time"]) not in (int, float) or not 0 <= frame["time"] < math.inf:
        raise MessageError(f"a frame of time {frame['time']!r:.80}")


def find_reach(role: str, places: Mapping[str, str], linked: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the roles that a role reaches directly and their sites: both sites must have the link."""
    mine = places[role]
    return {r: there for r, there in places.items() if there in linked[mine] and mine in linked[there]}
