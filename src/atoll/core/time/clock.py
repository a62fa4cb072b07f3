"""Time: real or virtual.

Virtual time: asyncio's own time, made to jump.

A ``VirtualLoop`` is an event loop whose clock jumps to the next timer whenever nothing is runnable and no engine work is pending, so that
deadlines, stragglers, ``asyncio.sleep`` and ``asyncio.timeout`` of any program run unchanged, without waiting. Timers of the same moment fire in
the order in which they were set, so a simulation has one order of events.

Detecting that an event loop can only wait for events from outside.

When a loop has no callback to run, no timer, no thread at work for it and nothing to write, its coroutines can only wait for events from
outside the process. Conversations use this to tell slow roles from roles that wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import math
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ..errors import AtollError

__all__ = ["Clock", "IdleSelector", "VirtualLoop", "WatchedLoop", "run", "watching"]


_MOMENT = 0.05  # seconds, so that busy sessions are not interrupted

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
        future.add_done_callback(self._end_help)
        return future

    def _end_help(self, future: asyncio.Future[Any]) -> None:
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


# ---------------------------------------------------------------------- virtual time


class _VirtualSelector(IdleSelector):
    """Waits only for engine work: an idle wait becomes a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pending = 0
        self.closing: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> Any:
        """Check for engine work; else jump to the next timer, or raise an error if there is none."""
        ready = super().select(0)  # never None: the watchers are called below
        if ready or timeout == 0:
            return ready
        if timeout is None and not self.pending and self.alone() and not self.closing():
            if self.told():
                return ready
            raise AtollError(
                "the program waits for something that cannot happen: no timer, no work and no message is pending",
                where="virtual time",
                remedy="check for roles that wait for each other, or for an event or queue that nothing completes",
            )
        # An engine computes: time stands still, or results would depend on how fast it is.
        if self.pending or timeout is None:
            return super().select(None)
        # Nothing can run before the next timer, so nobody can tell this jump from a wait.
        self.now += timeout
        return ready


class _Timer(asyncio.TimerHandle):
    """A timer with a number, so that a heap of timers has one order."""

    __slots__ = ("number",)
    number: int

    def __lt__(self, other: Any) -> bool:
        return bool((self.when(), self.number) < (other.when(), other.number))


class VirtualLoop(WatchedLoop):
    """An event loop in virtual time."""

    def __init__(self, start: float = 0.0) -> None:
        self._virtual = _VirtualSelector()
        self._virtual.now = start
        super().__init__(self._virtual)
        # A loop that closes waits for a thread that waits for the pool's threads.
        self._virtual.closing = lambda: bool(getattr(self, "_executor_shutdown_called", False))
        self._numbers = itertools.count()

    def call_at(  # type: ignore[override]  # the same but for type variables
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer; timers of the same moment fire in the order in which they were set."""
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers)
        timer._scheduled = True  # type: ignore[attr-defined]  # as asyncio's own call_at does
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        return timer

    @property
    def _clock_resolution(self) -> float:
        """One step of a float: asyncio fires timers that are due before the next tick, and a jump lands exactly on a timer."""
        return math.ulp(self._virtual.now)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignore asyncio's own value, which is for real clocks."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now

    def set_time(self, now: float) -> None:
        """Move the clock, for a resumed run."""
        self._virtual.now = now

    def work_begins(self) -> None:
        """Mark engine work as pending: time stands still until it ends."""
        self._virtual.pending += 1

    def work_ends(self) -> None:
        """Mark one piece of engine work as ended."""
        self._virtual.pending -= 1


# ---------------------------------------------------------------------- clocks


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

    async def keep_outcome() -> None:
        # Do not return the task's own result: a runner that restores its signal handler would print it several times.
        outcome.append(await main)

    def start() -> None:
        loop: asyncio.AbstractEventLoop = VirtualLoop() if virtual else WatchedLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(keep_outcome())

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
