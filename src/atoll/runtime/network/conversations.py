"""Conversations between parties at different sites: the server relays, or counts what goes directly, and keeps all of a session or nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.core.errors import MessageError, TaskError
from atoll.core.lamport import Chains
from atoll.core.request import Ran, Request

from .checks import ran_of
from .frames import names_in, text_in, whole_in
from .shared import bare

if TYPE_CHECKING:
    from atoll.core.session import Switch

    from .engine import Network
    from .station import Station

__all__ = ["Conversations"]

Cast = dict[str, tuple[Request, int]]
T = TypeVar("T")


@dataclass
class _Talk:
    """A session that goes on.

    Attributes:
        switch: relays and counts.
        roles: the cast.
        direct: role -> those whom it reaches directly -> their site; None where nobody has a link.
        chains: the clocks of the roles, where some messages do not pass here.
    """

    switch: Switch
    roles: Cast
    direct: dict[str, dict[str, str]] | None = None
    chains: Chains | None = None

    def require(self, role: str) -> str:
        """A role of the session.

        Raises:
            MessageError: it is none.
        """
        if role not in self.roles:
            raise MessageError(f"the session has no role {role[:80]!r}")
        return role

    def carry(self, source: str, frame: Any) -> None:
        """Pass a message on."""
        target = self.require(text_in(frame, "target"))
        if type(frame["time"]) not in (int, float) or not 0 <= frame["time"] < math.inf:
            raise MessageError(f"a message sent at {frame['time']!r:.80}")
        seconds = self.switch.heard(frame)
        if self.chains is not None:
            self.chains.sent(source, target, seconds)

    def note(self, role: str, words: Any) -> None:
        """Count what a role has said elsewhere, and follow its clock."""
        if self.chains is None or not isinstance(words, list):
            raise MessageError("words of a role that speaks to nobody directly")
        for word, told, *size in words:
            other = self.require(text_in({"role": told}, "role"))
            if word == "took":
                self.chains.received(role, other)
                continue
            nbytes = whole_in({"bytes": size[0] if size else None}, "bytes")
            if nbytes < 0 or other == role:
                raise MessageError(f"{nbytes} bytes from {role!r} to {other!r}")
            self.chains.sent(role, other, self.switch.count(role, other, nbytes))


class Conversations:
    """Sessions that go on.

    Args:
        network: the engine.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._talks: dict[int, _Talk] = {}

    def heard(self, station: Station, frame: Any) -> None:
        """A role says something, or that it waits, or what it has said elsewhere.

        Raises:
            AtollError: the role lives elsewhere, or what it says is of another form.
        """
        talk = self._talks.get(whole_in(frame, "session"))
        if talk is None:
            return
        speaker = talk.require(text_in(frame, "source" if frame["op"] == "pass" else "role"))
        self._network.require_home(station, talk.roles[speaker][1])
        if frame["op"] == "waits":
            for role, had in frame["for"]:
                text_in({"for": role}, "for")
                whole_in({"had": had}, "had")
            talk.switch.heard(frame)
        elif frame["op"] == "words":
            talk.note(speaker, frame["words"])
        else:
            talk.carry(speaker, frame)

    async def hold(self, roles: Cast, switch: Switch, start: float) -> dict[str, tuple[Any, float]]:
        """Run each role at its party; for each its result and the time at which it ended."""
        known = await self._known(roles)
        if known is not None:
            for role, ran in known.items():
                switch.repeat(role, ran.said)
            await self._keep(roles, known, {role: ran.said for role, ran in known.items()}, sealed=False)
            return {role: (ran.reply.value, ran.time) for role, ran in known.items()}
        session = self._network.number()
        talk = self._talks[session] = _Talk(switch, roles)
        try:
            rans = await self._run(session, roles, talk, start)
        finally:
            del self._talks[session]
        await self._keep(roles, rans, switch.said, sealed=any(ran.sealed for ran in rans.values()))
        return {role: (ran.reply.value, ran.time) for role, ran in rans.items()}

    async def _known(self, roles: Cast) -> dict[str, Ran] | None:
        """The results of a session whose every role is in its site's journal; a session is never repeated in part."""
        if not self._network.world.resume:
            return None

        def read(role: str) -> Callable[[Any], Ran | None]:
            return lambda answer: None if answer["ran"] is None else ran_of(answer, roles[role][1])

        answers = await asyncio.gather(*(self._call(role, roles, {"op": "known"}, read(role)) for role in roles))
        found = {role: ran for role, ran in zip(roles, answers, strict=True) if ran is not None}
        return found if len(found) == len(roles) else None

    async def _call(self, role: str, roles: Cast, frame: dict[str, Any], read: Callable[[Any], T]) -> T:
        request, position = roles[role]
        frame = {**frame, "request": bare(request), "position": position}
        return await self._network.station(position).call(self._network.number(), frame, read)

    async def _run(self, session: int, roles: Cast, talk: _Talk, start: float) -> dict[str, Ran]:
        stations = {self._network.station(position) for _, position in roles.values()}
        calls: list[asyncio.Task[Ran]] = []
        try:
            if self._network.direct:
                await self._meet(session, stations, talk, start)
            for role in roles:
                self._attach(session, role, roles[role][1], talk)
            calls += [asyncio.create_task(self._role(session, role, roles, start, talk)) for role in roles]
            rans, _ = await asyncio.gather(asyncio.gather(*calls), talk.switch.verdict())
        except BaseException:
            for station in stations:
                station.post({"op": "stop", "session": session})
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        found = dict(zip(roles, rans, strict=True))
        if talk.chains is None:
            return found
        return {role: replace(ran, time=talk.chains.times[role]) for role, ran in found.items()}

    async def _meet(self, session: int, stations: set[Station], talk: _Talk, start: float) -> None:
        """Find out who has links to whom, before anybody speaks: that decides the way of every message of the session."""
        places = {role: self._network.station(position).name for role, (_, position) in talk.roles.items()}

        async def ask(station: Station) -> tuple[str, set[str]]:
            here = [role for role, place in places.items() if place == station.name]
            frame = {"op": "meet", "session": session, "places": places, "here": here}
            number = self._network.number()
            return station.name, set(await station.call(number, frame, lambda answer: names_in(answer, "neighbours")))

        linked = dict(await asyncio.gather(*map(ask, stations)))
        direct = {role: _reached(role, places, linked) for role in talk.roles}
        if any(direct.values()):
            talk.direct, talk.chains = direct, Chains(talk.roles, start)
        pairs = {" and ".join(sorted((places[r], there))) for r, at in direct.items() for there in at.values()}
        self._network.choices["direct"] = sorted({*self._network.choices.get("direct", []), *pairs})

    def _attach(self, session: int, role: str, position: int, talk: _Talk) -> None:
        station, base = self._network.station(position), {"session": session, "role": role}

        def put(source: str, message: Any, arrival: float) -> None:
            station.post({**base, "op": "hand", "source": source, "message": message, "time": arrival})

        def gone(source: str) -> None:
            # Behind its last message: where those go directly, its site says it.
            if talk.direct is None or role not in talk.direct[source]:
                station.post({**base, "op": "gone", "source": source})

        talk.switch.attach(role, put, gone)

    async def _role(self, session: int, role: str, roles: Cast, start: float, talk: _Talk) -> Ran:
        others = [other for other in roles if other != role]
        frame = {"op": "role", "session": session, "role": role, "others": others, "start": start}
        frame["direct"] = None if talk.direct is None else talk.direct[role]

        def read(answer: Any) -> Ran:
            ran = ran_of(answer, roles[role][1])
            self._network.note_events(answer["events"], roles[role][1])
            return ran

        ran = await self._call(role, roles, frame, read)
        talk.switch.ended(role)
        return ran

    async def _keep(self, roles: Cast, rans: dict[str, Ran], said: dict[str, int], *, sealed: bool) -> None:
        """All roles have ended: what each left behind is written down at its site before the results are released."""
        if set(rans) != set(roles):
            raise TaskError("a session ended in part", remedy="resume the job from its last checkpoint")
        calls = []
        for role, (request, position) in roles.items():
            frame = {"op": "kept", "id": request.id, "position": position, "said": said[role], "sealed": sealed}
            frame["time"] = rans[role].time
            calls.append(self._network.station(position).call(self._network.number(), frame, lambda answer: None))
        await asyncio.gather(*calls)


def _reached(role: str, places: Mapping[str, str], linked: Mapping[str, set[str]]) -> dict[str, str]:
    """Whom a role reaches directly, and at which site: both sites must have the link."""
    mine = places[role]
    return {r: there for r, there in places.items() if there in linked[mine] and mine in linked[there]}
