"""Time: real or virtual."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from .idle import WatchedLoop
from .virtual import VirtualLoop

__all__ = ["Clock", "VirtualLoop", "run"]

R = TypeVar("R")


class Clock:
    """Seconds since the job began, in real or virtual time.

    Args:
        virtual: whether time is simulated.
    """

    def __init__(self, virtual: bool = True) -> None:
        self.virtual = virtual
        self._offset = 0.0
        self._start: float | None = None

    def now(self) -> float:
        """Seconds since the job began; a resume continues the count."""
        if self.virtual:
            return asyncio.get_running_loop().time()
        if self._start is None:
            self._start = time.monotonic()
        return self._offset + time.monotonic() - self._start

    def set(self, now: float) -> None:
        """Continue from a checkpoint's time."""
        if self.virtual:
            loop = asyncio.get_running_loop()
            if isinstance(loop, VirtualLoop):
                loop.set_time(now)
        else:
            self._offset, self._start = now, time.monotonic()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Mark engine work as pending: virtual time stands still."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            yield
            return
        loop.work_begins()
        try:
            yield
        finally:
            loop.work_ends()

    async def sleep_until(self, moment: float) -> None:
        """Wait until a moment on this clock."""
        delay = moment - self.now()
        if delay > 0:
            await asyncio.sleep(delay)


def run(main: Coroutine[Any, Any, R], *, virtual: bool = True) -> R:
    """Run a coroutine to its end. Inside a running loop (a notebook) it gets its own thread."""
    outcome: list[R] = []
    failure: list[BaseException] = []

    async def kept() -> None:
        # Do not return the task's own result: a runner that restores its signal handler would print it several times.
        outcome.append(await main)

    def start() -> None:
        loop: asyncio.AbstractEventLoop = VirtualLoop() if virtual else WatchedLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(kept())

    def target() -> None:
        try:
            start()
        except BaseException as error:
            failure.append(error)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        start()
    else:
        thread = threading.Thread(target=target, name="atoll")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
    return outcome[0]
