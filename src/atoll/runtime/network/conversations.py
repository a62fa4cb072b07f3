"""Conversations between parties at different sites: the server relays, and keeps all of a session or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from atoll.core.errors import TaskError
from atoll.core.request import Ran, Request
from atoll.core.wire import pack_request, unpack_ran

if TYPE_CHECKING:
    from atoll.core.session import Switch

    from .engine import Network

__all__ = ["Conversations"]

Cast = dict[str, tuple[Request, int]]


class Conversations:
    """Sessions that go on.

    Args:
        network: the engine.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._switches: dict[int, Switch] = {}

    def heard(self, frame: Any) -> None:
        """A role says something, or that it waits."""
        switch = self._switches.get(frame["session"])
        if switch is None:
            return
        if frame["op"] == "waits":
            switch.waiting(frame["role"], dict(frame["for"]))
        else:
            switch.carry(frame["source"], frame["target"], frame["message"], frame["time"])

    async def hold(self, roles: Cast, switch: Switch, start: float) -> dict[str, tuple[Any, float]]:
        """Run each role at its party; for each its result and the time at which it ended."""
        known = await self._known(roles)
        if known is not None:
            for role, ran in known.items():
                switch.repeat(role, ran.said)
            await self._keep(roles, known, {role: ran.said for role, ran in known.items()}, sealed=False)
            return {role: (ran.reply.value, ran.time) for role, ran in known.items()}
        session = self._network.number()
        self._switches[session] = switch
        try:
            rans = await self._run(session, roles, switch, start)
        finally:
            del self._switches[session]
        await self._keep(roles, rans, switch.said, sealed=any(ran.sealed for ran in rans.values()))
        return {role: (ran.reply.value, ran.time) for role, ran in rans.items()}

    async def _known(self, roles: Cast) -> dict[str, Ran] | None:
        """The results of a session whose every role is in its site's journal; a session is never repeated in part."""
        if not self._network.world.resume:
            return None
        answers = await asyncio.gather(*(self._call(role, roles, {"op": "known"}) for role in roles))
        found = {role: answer["ran"] for role, answer in zip(roles, answers, strict=True)}
        if any(ran is None for ran in found.values()):
            return None
        return {role: unpack_ran(ran) for role, ran in found.items()}

    async def _call(self, role: str, roles: Cast, frame: dict[str, Any]) -> Any:
        request, position = roles[role]
        packed: Any = pack_request(request, [])
        frame = {**frame, "request": {k: v for k, v in packed.items() if k != "message"}, "position": position}
        return await self._network.station(position).call(self._network.number(), frame)

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
        answer = await self._call(role, roles, frame)
        self._network.note_events(answer["events"])
        switch.ended(role)
        return unpack_ran(answer["ran"])

    async def _keep(self, roles: Cast, rans: dict[str, Ran], said: dict[str, int], *, sealed: bool) -> None:
        """All roles have ended: what each left behind is written down at its site before the results are released."""
        if set(rans) != set(roles):
            raise TaskError("a session ended in part", remedy="resume the job from its last checkpoint")
        calls = []
        for role, (request, position) in roles.items():
            frame = {"op": "kept", "id": request.id, "position": position, "said": said[role], "sealed": sealed}
            calls.append(self._network.station(position).call(self._network.number(), frame))
        await asyncio.gather(*calls)
