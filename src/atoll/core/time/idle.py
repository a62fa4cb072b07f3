"""Detecting that an event loop can only wait for events from outside.

When a loop has no callback to run, no timer, no thread at work for it and nothing to write, its coroutines can only wait for events from
outside the process. Conversations use this to tell slow roles from roles that wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["IdleSelector", "WatchedLoop", "watching"]

_MOMENT = 0.05  # seconds, so that busy conversations are not interrupted

Watcher = Callable[[], bool]
"""Called when a loop is idle; returns whether it has given the loop something to do."""


class IdleSelector(selectors.DefaultSelector):
    """A selector that calls its watchers when the loop is about to wait without a timeout.

    Args:
        links: sockets to the outside that the loop may be listening to.
    """

    def __init__(self, links: int = 0) -> None:
        super().__init__()
        self.watchers: list[Watcher] = []
        self.helpers = 0
        self._links = links

    def select(self, timeout: float | None = None) -> Any:
        """Wait as any selector does; after a moment without events, call the watchers before waiting without a timeout."""
        if timeout is None and self.alone():
            ready = super().select(_MOMENT)
            if ready or self.told():
                return ready
        return super().select(timeout)

    def alone(self) -> bool:
        """Whether nothing in this process works for the loop."""
        keys = self.get_map().values()  # asyncio listens to one pipe of its own
        return (
            self.helpers == 0
            and len(keys) <= 1 + self._links
            and not any(k.events & selectors.EVENT_WRITE for k in keys)
        )

    def told(self) -> bool:
        """Call the watchers until one of them gives the loop something to do; return whether one did."""
        return any(watcher() for watcher in self.watchers)


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop whose idleness can be watched.

    Args:
        selector: its selector.
    """

    def __init__(self, selector: IdleSelector | None = None) -> None:
        self.idle = selector or IdleSelector()
        super().__init__(self.idle)

    def run_in_executor(  # type: ignore[override]  # the same but for type variables
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread; the loop is not idle until it is done."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self.idle.helpers += 1
        future.add_done_callback(self._helped)
        return future

    def _helped(self, future: asyncio.Future[Any]) -> None:
        self.idle.helpers -= 1


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call a watcher whenever the running loop is idle; a loop that is not Atoll's calls none."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, WatchedLoop):
        yield
        return
    loop.idle.watchers.append(watcher)
    try:
        yield
    finally:
        loop.idle.watchers.remove(watcher)
