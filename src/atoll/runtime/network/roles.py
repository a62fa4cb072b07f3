"""The roles of conversations at a site, in an event loop of their own: whether that loop is idle says whether they wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core.errors import TaskError
from atoll.core.idle import IdleSelector, WatchedLoop, watching
from atoll.core.session import LocalPeers
from atoll.core.wire import pack_error, pack_ran, unpack_request
from atoll.engines.link import LinkClosed

if TYPE_CHECKING:
    from .resident import Resident

__all__ = ["Roles"]

Key = tuple[int, str]


class Roles:
    """Runs roles and hands them what others say.

    Args:
        resident: the site's half of the engine, whose loop owns the link.
    """

    def __init__(self, resident: Resident) -> None:
        self._resident = resident
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: WatchedLoop | None = None
        self._thread: threading.Thread | None = None
        self._peers: dict[Key, LocalPeers] = {}
        self._running: dict[int, set[asyncio.Task[None]]] = {}
        self._told: dict[Key, dict[str, int]] = {}
        self._early: dict[Key, list[Any]] = {}

    # ------------------------------------------------------------------ called in the link's loop

    def expect(self, frame: Any) -> None:
        """A role will begin once the orders before it are done; what is said to it meanwhile waits."""
        self._inside(self._announce, frame)

    def start(self, frame: Any) -> None:
        """Begin a role."""
        self._inside(self._begin, frame)

    def handle(self, frame: Any) -> None:
        """Hand over a message of another role, say that one has ended, or stop a session."""
        self._inside(self._stop if frame["op"] == "stop" else self._hand, frame)

    def keep(self, frame: Any) -> None:
        """The session is over and counts: what its roles left behind becomes the parties' state."""
        parking, host = self._resident.parking, self._resident.host
        parked = parking.get(frame["id"], int(frame["position"]))
        parked.ran = replace(parked.ran, said=int(frame["said"]))
        if frame["sealed"] and host.replay(parked.request, parked.ran.reply.party) is None:
            host.journal.put([(parked.request, parked.ran)])
        parking.keep(frame["id"], [int(frame["position"])])

    def close(self) -> None:
        """End the loop and its thread."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
            self._loop = None

    def _inside(self, call: Any, frame: Any) -> None:
        if self._loop is None:
            self._home = asyncio.get_running_loop()
            self._loop = WatchedLoop(IdleSelector())
            self._thread = threading.Thread(target=self._live, args=(self._loop,), name="atoll-roles", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(call, frame)

    def _say(self, frame: Mapping[str, Any]) -> None:
        """Send to the server, from the link's own loop."""

        async def send() -> None:
            with contextlib.suppress(LinkClosed):
                await self._resident.link.send(dict(frame))

        if self._home is not None:
            asyncio.run_coroutine_threadsafe(send(), self._home)

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

    def _idle(self) -> bool:
        """Nothing goes on here: say which roles wait for whom, if that is news."""
        waits = {key: peers.waits() for key, peers in self._peers.items()}
        news = {key: found for key, found in waits.items() if found and found != self._told.get(key)}
        self._told = waits
        for (session, role), found in news.items():
            self._say({"op": "waits", "session": session, "role": role, "for": [[r, had] for r, had in found.items()]})
        return False

    def _announce(self, frame: Any) -> None:
        self._early[frame["session"], frame["role"]] = []

    def _hand(self, frame: Any) -> None:
        key = (frame["session"], frame["role"])
        if key in self._early:
            self._early[key].append(frame)
            return
        peers = self._peers.get(key)
        if peers is None:
            return
        if frame["op"] == "gone":
            peers.gone(frame["source"])
        else:
            peers.put(frame["source"], frame["message"], frame["time"])

    def _stop(self, frame: Any) -> None:
        for role in self._running.get(frame["session"], ()):
            role.cancel()
        for (session, _), early in self._early.items():
            if session == frame["session"]:
                early.append(frame)

    def _begin(self, frame: Any) -> None:
        session, role = frame["session"], frame["role"]

        async def carry(target: str, message: Any, sent: float) -> None:
            self._say(
                {"op": "pass", "session": session, "source": role, "target": target, "message": message, "time": sent}
            )

        peers = LocalPeers(role, list(frame["others"]), carry, frame["start"])
        self._peers[session, role] = peers
        task = asyncio.get_running_loop().create_task(self._role(frame, peers))
        self._running.setdefault(session, set()).add(task)
        for said in self._early.pop((session, role), ()):
            if said["op"] == "stop":
                asyncio.get_running_loop().call_soon(task.cancel)  # once it has begun: it answers then
            else:
                self._hand(said)

    async def _role(self, frame: Any, peers: LocalPeers) -> None:
        events: list[Any] = []
        resident = self._resident

        def spend(event: Any, party: str, request: str) -> None:
            resident.host.spend(event, party, request)
            events.append({"event": event.packed(), "party": party, "request": request})

        try:
            request = unpack_request({**frame["request"], "message": None}, resident.registry)
            states = resident.host.states(request)
            ran = await resident.host.executor.role(request, frame["position"], peers, states, spend)
            resident.parking.park(request, ran)
            answer: dict[str, Any] = {"ran": pack_ran(replace(ran, state=None, changed=False))}
        except asyncio.CancelledError:
            answer = {"error": pack_error(TaskError("stopped because another role of the session failed"))}
        except Exception as error:
            answer = {"error": pack_error(error)}
        self._peers.pop((frame["session"], frame["role"]), None)
        if not any(session == frame["session"] for session, _ in self._peers):
            self._running.pop(frame["session"], None)
        self._say({"op": "answer", "number": frame["number"], "events": events, **answer})
