"""The two ends of a line: one makes its connections, the other waits for those of many lines."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from atoll.core.errors import IdentityError
from atoll.runs.versions import versions

from ..identity import SITES, Peer
from ..transport.base import OWN, Pipe, PipeClosed, address_of
from .channel import Channel, plain
from .frames import LineHello, Violation, read_hello, write_hello
from .line import Line
from .settings import TAKEN, Backoff, LineFlight, LineLost, LineRefused, Settings

__all__ = ["Switchboard", "dial_line", "local_line"]


# ------------------------------------------------------------------ the end of many lines that waits for their connections


_MOST = 256
"""Lines kept for one party; of those without a connection, the oldest goes first."""
_LOG = logging.getLogger("atoll.runtime")
_UNKNOWN = "this end does not know the line to resume: it restarted, or gave the line up"
_REMEMBERED = 64
"""Lines of a party that are known to have lost their place to another line."""


def _about() -> dict[str, Any]:
    return {"atoll": versions()["atoll"], "clock": time.time()}


def _is_site(peer: Peer) -> bool:
    return peer.role in SITES


class Switchboard:
    """Joins incoming connections to their lines; give its ``accept`` to ``Transport.listen``.

    Args:
        on_line: called with each new line, before anything can come over it.
        settings: bounds and paces of the lines.
        alone: whether a party has at most one process. If so, another is refused as long as the first answers. The line
            of a process that does not answer ends; it learns so if it still runs and dials again.
        takeover: let another process end the first one's line even while that answers.
        on_second: called with the party, the addresses of the first process and of the other, and whether the other is
            refused.

    Attributes:
        lines: the lines that are not lost.
    """

    def __init__(
        self,
        on_line: Callable[[Line], None],
        settings: Settings | None = None,
        alone: Callable[[Peer], bool] = _is_site,
        *,
        takeover: bool = False,
        on_second: Callable[[Peer, str, str, bool], None] = lambda peer, first, other, refused: None,
    ) -> None:
        self._on_line = on_line
        self._settings = settings or Settings()
        self._alone = alone
        self._takeover = takeover
        self._on_second = on_second
        self._coming: dict[tuple[str, str], asyncio.Lock] = {}
        self._lines: dict[tuple[str, str, bytes], Line] = {}
        self._joining: dict[tuple[str, str, bytes], asyncio.Lock] = {}
        self._displaced: dict[tuple[str, str], deque[bytes]] = {}

    @property
    def lines(self) -> list[Line]:
        """Return the lines that are not lost."""
        return list(self._lines.values())

    async def accept(self, pipe: Pipe) -> None:
        """Take a connection: it resumes its line, begins one, or is closed if it is refused or wants no line."""
        peer = pipe.peer
        try:
            async with asyncio.timeout(self._settings.greeting):
                theirs = await read_hello(pipe)
                if not theirs.refused:
                    await self._join(pipe, theirs)
                    return
                _LOG.info("%s wants no line: %s", peer, plain(theirs.refused))
            await self._answer(pipe, LineHello(secrets.token_bytes(16), refused="a visit", about=_about()))
        except (Violation, PipeClosed) as error:
            _LOG.warning("%s: the connection is refused: %s", peer, error)
            if isinstance(error, Violation):
                await self._answer(pipe, LineHello(secrets.token_bytes(16), refused=str(error)))
        except TimeoutError:
            _LOG.warning("%s: the connection is refused: no HELLO within %g s", peer, self._settings.greeting)
        await pipe.close()

    async def _answer(self, pipe: Pipe, hello: LineHello) -> None:
        try:
            async with asyncio.timeout(self._settings.greeting):
                await write_hello(pipe, hello)
        except (PipeClosed, TimeoutError):
            _LOG.info("%s did not wait for the answer", pipe.peer)

    async def _join(self, pipe: Pipe, theirs: LineHello) -> None:
        peer = pipe.peer
        asks = theirs.about.get("asks") is True
        # What a site's people ask comes over a line of its own, which leaves that of the site's daemon alone.
        key = (f"{peer.role}, asking" if asks else peer.role, peer.name, theirs.line)
        if theirs.line in self._displaced.get(key[:2], ()):
            raise Violation(TAKEN)
        line = self._lines.get(key)
        if theirs.other and (line is None or line.id != theirs.other):
            raise Violation(_UNKNOWN)
        if line is None:
            async with self._coming.setdefault(key[:2], asyncio.Lock()):
                line = self._lines.get(key) or await self._new(key, pipe, asks)
        async with self._joining.setdefault(key, asyncio.Lock()):
            await line.detach()
            if line.lost.is_set():  # while this connection waited for its turn
                raise Violation(TAKEN if theirs.line in self._displaced.get(key[:2], ()) else _UNKNOWN)
            try:
                await write_hello(pipe, line.greeting())
                if line.lost.is_set():  # while its greeting was sent
                    raise Violation(_UNKNOWN)
                line.attach(pipe, theirs)
            except BaseException:
                line.begin_waiting()
                raise

    async def _new(self, key: tuple[str, str, bytes], pipe: Pipe, asks: bool) -> Line:
        peer = pipe.peer
        alone = self._alone(peer) and not asks
        if alone:
            await self._require_alone(key, pipe)
        before = [line for k, line in self._lines.items() if k[:2] == key[:2]]
        if alone:
            # A killed process never comes back; one that still runs must not push out the one that has its place now.
            displaced = self._displaced.setdefault(key[:2], deque(maxlen=_REMEMBERED))
            displaced.extend(k[2] for k in self._lines if k[:2] == key[:2])
            for old in before:
                old.lose(LineLost(f"{peer} restarted"))
        elif len(before) >= _MOST:
            cut = next((line for line in before if not line.connected), None)
            if cut is None:
                raise Violation(f"{peer} has {_MOST} lines, the most for one party")
            cut.lose(LineLost(f"{peer} began {_MOST} other lines"))
        line = Line(peer, dialled=False, settings=self._settings, asks=asks)
        line.address = address_of(pipe)
        self._lines[key] = line
        line.on_lost.append(lambda _: self._forget(key))
        self._on_line(line)
        return line

    async def _require_alone(self, key: tuple[str, str, bytes], pipe: Pipe) -> None:
        """Refuse a second process of a party while the first lives; whoever has the kit could push the owner aside.

        Raises:
            Violation: the first one answers.
        """
        for line in [line for k, line in self._lines.items() if k[:2] == key[:2]]:
            there, here = line.address, address_of(pipe)
            if not await line.answers(self._settings.answer):
                continue
            refused = not self._takeover
            _LOG.warning(
                "%s: a second process, at %s, uses the kit of the one at %s, and %s",
                pipe.peer, here or "?", there or "?", "is refused" if refused else "replaces it",
            )  # fmt: skip
            self._on_second(pipe.peer, there, here, refused)
            if refused:
                raise Violation(TAKEN)

    def _forget(self, key: tuple[str, str, bytes]) -> None:
        self._lines.pop(key, None)
        self._joining.pop(key, None)

    async def close(self, reason: str = "", within: float = 5.0) -> None:
        """Close all lines."""
        await asyncio.gather(*(line.close(reason, within) for line in self.lines))


# ------------------------------------------------------------------ the end of a line that makes its connections


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
