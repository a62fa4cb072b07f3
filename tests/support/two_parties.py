"""Two coroutines over one channel, without a session around them: what a protocol's own tests need of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from atoll.core import message as M
from atoll.core.requests.island import Secret


class Wire:
    """One end of a channel: what is sent is encoded and decoded as between processes, and kept in ``sent``."""

    def __init__(self, me: str, queues: Any) -> None:
        self.me, self._queues, self.sent = me, queues, []

    async def send(self, role: str, message: Any) -> None:
        raw = bytes(M.encode(message))
        self.sent.append(raw)
        self._queues[self.me, role].put_nowait(M.decode(raw))

    async def recv(self, role: str) -> Any:
        return await self._queues[role, self.me].get()


def converse(first, second, *, seed: int | None = None):
    """Run ``await first(secret, wire, "second")`` beside ``await second(secret, wire, "first")``; return both results and both ends."""

    async def both():
        queues: Any = defaultdict(asyncio.Queue)
        ends = [Wire(name, queues) for name in ("first", "second")]
        secrets = [Secret(None if seed is None else seed * 2 + i) for i in range(2)]
        async with asyncio.TaskGroup() as group:
            one = group.create_task(first(secrets[0], ends[0], "second"))
            two = group.create_task(second(secrets[1], ends[1], "first"))
        return one.result(), two.result(), ends

    try:
        return asyncio.run(both())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
