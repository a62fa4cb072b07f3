"""Conversations between parties at different sites: the server relays, or counts what goes directly, and keeps all of a session or nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.core.errors import TaskError
from atoll.core.lamport import Chains
from atoll.core.request import Ran

from .checks import ran_of
from .frames import names_in, text_in, whole_in
from .shared import bare
from .talk import Cast, Talk, reached

if TYPE_CHECKING:
    from atoll.core.session import Switch

    from .engine import Network
    from .station import Station

__all__ = ["Conversations"]

T = TypeVar("T")


class Conversations:
    """Sessions that go on.

    Args:
        network: the engine.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._talks: dict[int, Talk] = {}
        self._numbers = itertools.count()

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
        talk.heard(speaker, frame)

    async def hold(self, roles: Cast, switch: Switch, start: float) -> dict[str, tuple[Any, float]]:
        """Run each role at its party; for each its result and the time at which it ended."""
        known = await self._known(roles)
        if known is not None:
            for role, ran in known.items():
                switch.repeat(role, ran.said)
            await self._keep(roles, known, {role: ran.said for role, ran in known.items()}, sealed=False)
            return {role: (ran.reply.value, ran.time) for role, ran in known.items()}
        session = next(self._numbers)
        talk = self._talks[session] = Talk(switch, roles)
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
        return await self._network.sites.of(position).call(frame, read)

    async def _run(self, session: int, roles: Cast, talk: Talk, start: float) -> dict[str, Ran]:
        stations = {self._network.sites.of(position) for _, position in roles.values()}
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

    async def _meet(self, session: int, stations: set[Station], talk: Talk, start: float) -> None:
        """Find out who has links to whom, before anybody speaks: that decides the way of every message of the session."""
        places = {role: self._network.sites.of(position).name for role, (_, position) in talk.roles.items()}

        async def ask(station: Station) -> tuple[str, set[str]]:
            here = [role for role, place in places.items() if place == station.name]
            frame = {"op": "meet", "session": session, "places": places, "here": here}
            return station.name, set(await station.call(frame, lambda answer: names_in(answer, "neighbours")))

        linked = dict(await asyncio.gather(*map(ask, stations)))
        direct = {role: reached(role, places, linked) for role in talk.roles}
        if any(direct.values()):
            talk.direct, talk.chains = direct, Chains(talk.roles, start)
        pairs = {" and ".join(sorted((places[r], there))) for r, at in direct.items() for there in at.values()}
        self._network.choices["direct"] = sorted({*self._network.choices.get("direct", []), *pairs})

    def _attach(self, session: int, role: str, position: int, talk: Talk) -> None:
        station, base = self._network.sites.of(position), {"session": session, "role": role}

        def put(source: str, message: Any, arrival: float) -> None:
            station.post({**base, "op": "hand", "source": source, "message": message, "time": arrival})

        def gone(source: str) -> None:
            # Behind its last message: where those go directly, its site says it.
            if talk.direct is None or role not in talk.direct[source]:
                station.post({**base, "op": "gone", "source": source})

        talk.switch.attach(role, put, gone)

    async def _role(self, session: int, role: str, roles: Cast, start: float, talk: Talk) -> Ran:
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
            calls.append(self._network.sites.of(position).call(frame, lambda answer: None))
        await asyncio.gather(*calls)
