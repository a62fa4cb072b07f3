"""The session roles that a process plays: the messages for them, whom they wait for, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from atoll.core import message as M
from atoll.core.errors import TaskError
from atoll.core.execution.session import LocalPeers
from atoll.core.requests.wire import pack_error

__all__ = ["Actors", "Key", "answer_of", "sendable"]

Key = tuple[int, str]
"""The number of a session, and a role in it."""


class Actors:
    """The session roles that run in this process, wherever the other roles run."""

    def __init__(self) -> None:
        self._peers: dict[Key, LocalPeers] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._held: set[asyncio.Task[None]] = set()
        self._told: dict[Key, dict[str, int]] = {}

    def begin(self, key: Key, peers: LocalPeers, work: Coroutine[Any, Any, None]) -> None:
        """Start a role.

        Args:
            key: the session and the role.
            peers: through which the role hears the others.
            work: runs the role, and calls ``end`` before it answers.
        """
        self._peers[key] = peers
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    def hand(self, frame: Any) -> None:
        """Deliver to a role a message of another role, the news that one has ended, or that a checkpoint is decided. A role that no longer runs gets nothing."""
        peers = self._peers.get((frame["session"], frame["role"]))
        if peers is None:
            return
        if frame["op"] == "gone":
            peers.note_end(frame["source"], frame["ending"], frame["time"])
        elif frame["op"] == "step":
            lost = frame["lost"]
            peers.note_decision(frame["number"], frame["time"], None if lost is None else (lost[0], lost[1]))
        else:
            peers.put(frame["source"], frame["message"], frame["time"], frame.get("channel", ""))

    def stop(self, session: int) -> None:
        """Cancel the roles of a session that have started. It waits for their first steps: a task cancelled before these never answers."""
        for key, task in self._tasks.items():
            if key[0] == session:
                asyncio.get_running_loop().call_soon(self._cancel, key, task)

    def _cancel(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            task.cancel()

    def end(self, key: Key) -> None:
        """Mark a role as ended: it gets no more messages, and its answer is not cancelled."""
        del self._peers[key], self._tasks[key]

    def playing(self, session: int) -> bool:
        """Whether any role of a session runs here."""
        return any(key[0] == session for key in self._peers)

    @property
    def some(self) -> bool:
        """Whether any role runs here."""
        return bool(self._peers)

    @property
    def busy(self) -> bool:
        """Whether a role does anything but wait for another role. You can call this from any thread."""
        return not all(peers.hears for peers in list(self._peers.values()))

    def waiting(self) -> list[dict[str, Any]]:
        """Which roles wait for whom, as frames; what was reported before is left out. Call it while nothing runs here."""
        waits = {key: peers.waits() for key, peers in self._peers.items()}
        news = {key: found for key, found in waits.items() if found and found != self._told.get(key)}
        self._told = waits
        return [
            {"op": "waits", "session": session, "role": role, "for": [[other, had] for other, had in found.items()]}
            for (session, role), found in news.items()
        ]


async def answer_of(
    work: Awaitable[dict[str, Any]], told: Callable[[Exception], BaseException] = lambda error: error
) -> dict[str, Any]:
    """A role's result, or the error that ended it, as ``told`` gives it."""
    try:
        return await work
    except asyncio.CancelledError:
        return {"error": pack_error(TaskError("stopped because another role of the session failed"))}
    except Exception as error:
        return {"error": pack_error(told(error))}


def sendable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer if a message can carry it.

    Raises:
        MessageError: it cannot. If sending found this out, nobody would get an answer.
    """
    M.nbytes(answer)
    return answer
