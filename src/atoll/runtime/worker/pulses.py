"""Signs of life: a process that works uses processor time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from atoll.core.time.effort import Effort
from atoll.engines.link import LinkClosed

__all__ = ["pulsing"]

_EVERY = 1.0  # seconds


@contextlib.asynccontextmanager
async def pulsing(
    send: Callable[[], Awaitable[None]], every: float = _EVERY, spent: Callable[[], float] | None = None
) -> AsyncIterator[None]:
    """Send a sign now and then while a process uses processor time; run long work in a thread meanwhile.

    Args:
        send: sends it.
        every: seconds between two checks.
        spent: the processor time so far, in seconds; by default that of this process and its descendants.
    """
    effort = Effort() if spent is None else Effort(spent, started=None)

    async def beat() -> None:
        while True:
            await asyncio.sleep(every)
            if effort.moved():
                await send()

    async def quiet() -> None:
        with contextlib.suppress(LinkClosed):
            await beat()

    task = asyncio.create_task(quiet())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
