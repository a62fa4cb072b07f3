"""Conversations between parties at different sites: the server relays, and keeps all of a session or nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.core.errors import MessageError, TaskError
from atoll.core.request import Ran, Request
from atoll.core.wire import pack_request

from .checks import ran_of, text_in, whole_in

if TYPE_CHECKING:
    from atoll.core.session import Switch

    from .engine import Network
    from .station import Station

__all__ = ["Conversations"]

Cast = dict[str, tuple[Request, int]]
T = TypeVar("T")


class Conversations:
    """Sessions that go on.

    Args:
        network: the engine.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._sessions: dict[int, tuple[Switch, Cast]] = {}

    def heard(self, station: Station, frame: Any) -> None:
        """A role says something, or that it waits.

        Raises:
            AtollError: the role lives elsewhere, or what it says is of another form.
        """
        switch, roles = self._sessions.get(whole_in(frame, "session"), (None, {}))
        if switch is None:
            return
        speaker = text_in(frame, "role" if frame["op"] == "waits" else "source")
        self._require_role(speaker, roles)
        self._network.require_home(station, roles[speaker][1])
        if frame["op"] == "waits":
            waits = {text_in({"for": role}, "for"): whole_in({"had": had}, "had") for role, had in frame["for"]}
            switch.waiting(speaker, waits)
            return
        self._require_role(text_in(frame, "target"), roles)
        if type(frame["time"]) not in (int, float) or not 0 <= frame["time"] < math.inf:
            raise MessageError(f"a message sent at {frame['time']!r:.80}")
        switch.carry(speaker, frame["target"], frame["message"], frame["time"])

    @staticmethod
    def _require_role(role: str, roles: Cast) -> None:
        if role not in roles:
            raise MessageError(f"the session has no role {role[:80]!r}")

    async def hold(self, roles: Cast, switch: Switch, start: float) -> dict[str, tuple[Any, float]]:
        """Run each role at its party; for each its result and the time at which it ended."""
        known = await self._known(roles)
        if known is not None:
            for role, ran in known.items():
                switch.repeat(role, ran.said)
            await self._keep(roles, known, {role: ran.said for role, ran in known.items()}, sealed=False)
            return {role: (ran.reply.value, ran.time) for role, ran in known.items()}
        session = self._network.number()
        self._sessions[session] = switch, roles
        try:
            rans = await self._run(session, roles, switch, start)
        finally:
            del self._sessions[session]
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
        packed: Any = pack_request(request, [])
        frame = {**frame, "request": {k: v for k, v in packed.items() if k != "message"}, "position": position}
        return await self._network.station(position).call(self._network.number(), frame, read)

    async def _run(self, session: int, roles: Cast, switch: Switch, start: float) -> dict[str, Ran]:
        for role in roles:
            self._attach(session, role, roles[role][1], switch)
        calls = [asyncio.create_task(self._role(session, role, roles, start, switch)) for role in roles]
        try:
            rans, _ = await asyncio.gather(asyncio.gather(*calls), switch.verdict())
        except BaseException:
            for station in {self._network.station(position) for _, position in roles.values()}:
                station.post({"op": "stop", "session": session})
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        return dict(zip(roles, rans, strict=True))

    def _attach(self, session: int, role: str, position: int, switch: Switch) -> None:
        station, base = self._network.station(position), {"session": session, "role": role}

        def put(source: str, message: Any, arrival: float) -> None:
            station.post({**base, "op": "hand", "source": source, "message": message, "time": arrival})

        def gone(source: str) -> None:
            station.post({**base, "op": "gone", "source": source})

        switch.attach(role, put, gone)

    async def _role(self, session: int, role: str, roles: Cast, start: float, switch: Switch) -> Ran:
        others = [other for other in roles if other != role]
        frame = {"op": "role", "session": session, "role": role, "others": others, "start": start}

        def read(answer: Any) -> Ran:
            ran = ran_of(answer, roles[role][1])
            self._network.note_events(answer["events"], roles[role][1])
            return ran

        ran = await self._call(role, roles, frame, read)
        switch.ended(role)
        return ran

    async def _keep(self, roles: Cast, rans: dict[str, Ran], said: dict[str, int], *, sealed: bool) -> None:
        """All roles have ended: what each left behind is written down at its site before the results are released."""
        if set(rans) != set(roles):
            raise TaskError("a session ended in part", remedy="resume the job from its last checkpoint")
        calls = []
        for role, (request, position) in roles.items():
            frame = {"op": "kept", "id": request.id, "position": position, "said": said[role], "sealed": sealed}
            calls.append(self._network.station(position).call(self._network.number(), frame, lambda answer: None))
        await asyncio.gather(*calls)
