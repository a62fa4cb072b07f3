"""The thread in which a site runs tasks, and everything that touches private state: one thing after another."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["TaskThread"]

Step = Callable[[], Awaitable[Any]]
R = TypeVar("R")


class TaskThread:
    """A thread with an event loop of its own, for work that would block the loop that reads the link.

    Attributes:
        busy: whether something runs in it.
    """

    def __init__(self) -> None:
        self.busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atoll-tasks")
        self._runner: asyncio.Runner | None = None

    async def run(self, step: Step) -> Any:
        """Run a step after everything that came before it."""
        self.busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._drive, step)
        finally:
            self.busy = False

    async def call(self, function: Callable[..., R], *given: Any) -> R:
        """Call a function there, outside its event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, functools.partial(contextvars.copy_context().run, function, *given)
        )

    def _drive(self, step: Step) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def main() -> Any:
            return await step()

        return self._runner.run(main())

    def close(self) -> None:
        """End the thread once its current step has ended; do not wait for that."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.close()
