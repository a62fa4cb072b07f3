"""Signs of life of a process that works: its processor time has moved."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from atoll.engines.link import LinkClosed

__all__ = ["pulsing"]

_EVERY = 1.0  # seconds
_MOVED = 1e-3  # seconds of processor time that are work, not waiting


@contextlib.asynccontextmanager
async def pulsing(
    send: Callable[[float], Awaitable[None]], every: float = _EVERY, spent: Callable[[], float] = time.process_time
) -> AsyncIterator[None]:
    """Send a sign now and then while the processor time of a process moves; what takes long must run in a thread meanwhile.

    Args:
        send: is given the processor time so far, in seconds.
        every: seconds between two looks.
        spent: that processor time; by default this process's own.
    """

    async def beat() -> None:
        before = spent()
        while True:
            await asyncio.sleep(every)
            now = spent()
            if now - before > _MOVED:
                await send(now)
            before = now

    async def quiet() -> None:
        with contextlib.suppress(LinkClosed):
            await beat()

    task = asyncio.create_task(quiet())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
