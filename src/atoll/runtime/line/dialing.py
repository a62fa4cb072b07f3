"""The end of a line that makes its connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from atoll.core.errors import IdentityError
from atoll.runtime.transport.base import Pipe, PipeClosed
from atoll.runtime.transport.refusals import OWN

from .backoff import Backoff
from .channel import Channel
from .flight import LineFlight
from .frames import Violation
from .hello import LineHello, read_hello, write_hello
from .line import Line
from .settings import TAKEN, LineLost, LineRefused, Settings

__all__ = ["dial_line", "local_line"]

_LOG = logging.getLogger("atoll.runtime")
Dial: TypeAlias = Callable[[], Awaitable[Pipe]]
_WITHIN = 8 << 20  # bytes in transit between two processes of a machine: more does not make it faster


async def dial_line(
    dial: Dial,
    *,
    settings: Settings | None = None,
    on_open: Callable[[Channel], None] | None = None,
    backoff: Backoff | None = None,
    asks: bool = False,
) -> Line:
    """Connect, and keep connected until the line is closed or lost.

    Until the first connection, it retries after every failure except a refusal, for ``settings.patience`` seconds
    (None: for ever).

    Args:
        dial: makes one connection: ``functools.partial(transport.dial, address, credentials)``.
        settings: bounds and paces.
        on_open: called with each channel that the other end opens.
        backoff: the pauses between attempts.
        asks: whether the line carries requests of a site's people: it does not take the place of the site's daemon.

    After that, the line is lost with ``LineRefused`` once the other end refuses this one. If this end refuses the
    other, it retries, since the other end may be repaired.

    Raises:
        IdentityError: one end refuses the other.
        LineRefused: another process of this party has its place.
        LineLost: the other end speaks another version, or refuses for another reason, which it gives.
        OSError: nothing could be reached in time.
    """
    settings = settings or Settings()
    dialer = _Dialer(dial, settings, backoff or Backoff(), asks)
    line, running = await dialer.first(on_open)
    keeper = asyncio.create_task(dialer.keep(line, running))

    def stop(error: Exception) -> None:
        del error
        keeper.cancel()

    line.on_lost.append(stop)
    return line


class _Dialer:
    def __init__(self, dial: Dial, settings: Settings, backoff: Backoff, asks: bool) -> None:
        self._dial = dial
        self._asks = asks
        self._settings = settings
        self._backoff = backoff

    async def first(self, on_open: Callable[[Channel], None] | None) -> tuple[Line, asyncio.Task[str]]:
        """Make the first connection."""
        loop = asyncio.get_running_loop()
        patience = self._settings.patience
        until = None if patience is None else loop.time() + patience
        line: Line | None = None
        while True:
            try:
                pipe = await self._dial()
                if line is None:
                    line = Line(pipe.peer, dialled=True, settings=self._settings, asks=self._asks)
                    line.on_open = on_open
                return line, await self._greet_server(line, pipe)
            except IdentityError:
                raise
            except (OSError, TimeoutError, Violation) as error:
                if isinstance(error, LineLost):
                    raise
                pause = self._backoff.pause()
                if until is not None and loop.time() + pause > until:
                    raise error if isinstance(error, OSError) else LineLost(str(error)) from error
                _LOG.info("not connected yet: %s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)

    async def keep(self, line: Line, running: asyncio.Task[str]) -> None:
        """Make a new connection whenever there is none."""
        while not line.lost.is_set():
            await asyncio.wait({running})
            if line.lost.is_set():
                return
            _LOG.warning("%s: the connection is cut (%s); making another", line.peer, running.result())
            again = await self._again(line)
            if again is None:
                return
            running = again

    async def _again(self, line: Line) -> asyncio.Task[str] | None:
        while True:
            try:
                return await self._greet_server(line, await self._dial())
            except LineLost as error:
                line.lose(error)
                return None
            except (OSError, TimeoutError, Violation) as error:
                if isinstance(error, IdentityError) and error.where == OWN:
                    line.lose(LineRefused(error))
                    return None
                pause = self._backoff.pause()
                _LOG.warning("%s cannot be reached: %s; trying again in %.1f s", line.peer, error, pause)
                await asyncio.sleep(pause)

    async def _greet_server(self, line: Line, pipe: Pipe) -> asyncio.Task[str]:
        try:
            theirs = await _exchange(line, pipe)
            if theirs.refused == TAKEN:
                raise LineRefused(_make_taken_error(pipe))
            if theirs.refused:
                raise LineLost(f"{pipe.peer}: {theirs.refused}")
            if line.other and theirs.line != line.other:
                raise LineLost(f"{pipe.peer} restarted and does not know this line")
            running = line.attach(pipe, theirs)
        except BaseException:
            await pipe.close()
            raise
        self._backoff.reset()
        return running


def _make_taken_error(pipe: Pipe) -> IdentityError:
    remedy = "stop one of the two: every process of a project needs a kit of its own"
    return IdentityError(TAKEN, where=f"line to {pipe.peer}", remedy=remedy)


async def _exchange(line: Line, pipe: Pipe) -> LineHello:
    try:
        async with asyncio.timeout(line.settings.greeting):
            await write_hello(pipe, line.greeting())
            return await read_hello(pipe)
    except TimeoutError:
        raise PipeClosed(f"{pipe.peer} said nothing for {line.settings.greeting:g} s") from None


async def local_line(
    pipe: Pipe,
    *,
    dialled: bool,
    settings: Settings | None = None,
    on_open: Callable[[Channel], None] | None = None,
) -> Line:
    """Return a line over one connection inside a machine. It is lost with the connection and has no heartbeats: a process that ends closes it.

    Args:
        pipe: the connection; see ``local_pipe``.
        dialled: true at exactly one of the ends: the job process.
        settings: bounds; heartbeat, patience, resumes and flight are ignored.
        on_open: called with each channel that the other end opens.

    Raises:
        LineLost: the other end ended, or runs another version.
    """
    within = LineFlight(_WITHIN)
    settings = replace(settings or Settings(), heartbeat=None, patience=None, resumes=False, flight=within)
    line = Line(pipe.peer, dialled=dialled, settings=settings)
    line.on_open = on_open
    try:
        running = line.attach(pipe, await _exchange(line, pipe))
    except (OSError, Violation) as error:
        await pipe.close()
        raise LineLost(f"no line to {pipe.peer}: {error}") from error
    running.add_done_callback(
        lambda task: line.lose(LineLost("cancelled" if task.cancelled() else f"{line.peer} is gone: {task.result()}"))
    )
    return line
