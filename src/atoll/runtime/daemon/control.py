"""What daemons and people tell each other about jobs: short frames on a separate channel, blocks passed on unread, and the ways to a server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from atoll.core.errors import AtollError, IdentityError, MessageError
from atoll.core.message import Limits
from atoll.engines.link import LinkClosed

from ..bundle import LIMITS
from ..line import Channel, PackedMessage
from ..line.channel import plain
from ..provision import Kit
from ..transport import Pipe, PipeClosed, transport
from ..transport.base import split

__all__ = [
    "CONTROL",
    "FROM_SERVER",
    "FROM_SITE",
    "RESULT_NAME",
    "Control",
    "Ending",
    "carry",
    "content",
    "dialler",
    "direct_channel",
    "job_channel",
    "relay",
    "text",
    "whole",
]


# ------------------------------------------------------------------ what the daemons of server and site tell each other about jobs: short frames on a separate channel


RESULT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""A name that a file of results may have."""

CONTROL = "control"
"""Name of the channel; the site opens it, and its first frame is ``hello``."""

FROM_SITE = Limits(
    max_bytes=16 << 20, max_header_bytes=16 << 20, max_text_bytes=16 << 20, max_leaves=200_000, max_depth=16
)
"""Limits of a site's frame: the longest are lines of logs."""
FROM_SERVER = Limits(
    max_bytes=LIMITS.bundle + (1 << 20), max_header_bytes=1 << 20, max_text_bytes=1 << 20, max_depth=16
)
"""Limits of a server's frame: the longest holds a bundle."""

_BACKLOG = 1000
"""Frames that may wait before lines of logs are left out."""
_LOG = logging.getLogger("atoll.runtime")

Frame = Mapping[str, Any]


def job_channel(job: str, attempt: int) -> str:
    """Name of the channel of an attempt; the server opens it."""
    return f"job/{job}/{attempt}"


def direct_channel(job: str, attempt: int) -> str:
    """Name of the channel of an attempt between two sites; the one that dialled opens it."""
    return f"direct/{job}/{attempt}"


class Control:
    """Frames in order, in both directions. ``tell`` never waits: one task writes.

    Args:
        channel: the channel named ``control``.
        on_frame: called with every frame that is a mapping with an ``op``. If it raises, the channel ends, not the
            daemon.

    However fast frames arrive, other tasks get a turn after each.
    """

    def __init__(self, channel: Channel, on_frame: Callable[[Frame], None]) -> None:
        self.channel = channel
        self._on_frame = on_frame
        self._out: asyncio.Queue[Any] = asyncio.Queue()

    def tell(self, op: str, **fields: Any) -> None:
        """Send a frame, after all earlier ones. Lines of logs are left out while too many frames wait for the network."""
        if op == "log" and self._out.qsize() > _BACKLOG:
            return
        self._out.put_nowait({"op": op, **fields})

    def send(self, frame: PackedMessage) -> None:
        """Send a frame that is already serialised, after all earlier ones."""
        self._out.put_nowait(frame)

    async def run(self) -> str:
        """Carry frames until the channel ends; return why it ended."""
        ways = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return next(way.result() for way in ways if way in done)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _read(self) -> str:
        while True:
            try:
                frame = await self.channel.recv()
                self._on_frame(_frame(frame))
            except LinkClosed as error:
                return str(error)
            except AtollError as error:
                return self._refuse_frame(str(error))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                return self._refuse_frame(f"{type(error).__name__}: {error!s:.200}")
            await asyncio.sleep(0)

    def _refuse_frame(self, why: str) -> str:
        _LOG.warning("%s: a frame about jobs is refused: %s", self.channel.peer, plain(why))
        self.channel.close(f"a frame was refused: {why}")
        return why

    async def _write(self) -> str:
        while True:
            frame = await self._out.get()
            try:
                await self.channel.send(frame)
            except LinkClosed as error:
                return str(error)


def _frame(found: Any) -> Frame:
    if not isinstance(found, dict) or not isinstance(found.get("op"), str):
        raise MessageError(
            "a frame without an op", where="control", remedy="use the same version of Atoll at both ends"
        )
    return found


def text(frame: Frame, name: str, most: int = 4000) -> str:
    """Return a word in a frame.

    Raises:
        MessageError: it is missing, not text, or too long.
    """
    found = frame.get(name)
    if not isinstance(found, str) or len(found) > most:
        raise _wrong(frame, name)
    return found


def content(frame: Frame, name: str) -> bytes:
    """Return bytes in a frame.

    Raises:
        MessageError: they are missing, or not bytes.
    """
    found = frame.get(name)
    if not isinstance(found, bytes | bytearray | memoryview):
        raise _wrong(frame, name)
    return bytes(found)


def whole(frame: Frame, name: str) -> int:
    """Return a whole number in a frame.

    Raises:
        MessageError: it is missing, or not a whole number.
    """
    found = frame.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or found.bit_length() > 63:
        raise _wrong(frame, name)
    return found


def _wrong(frame: Frame, name: str) -> MessageError:
    return MessageError(
        f"{name!r} of the frame {str(frame.get('op'))[:40]!r} is missing or of another kind",
        where="control",
        remedy="use the same version of Atoll at both ends",
    )


# ------------------------------------------------------------------ pass the blocks of a job between its process and the network, without reading them


Moved = Callable[[int], None]


class Ending(NamedTuple):
    """How a relay ended.

    Attributes:
        channel: the channel that ended.
        error: its error; a ``LineLost`` if its whole line is gone.
    """

    channel: Channel
    error: LinkClosed


async def carry(one: Channel, other: Channel, moved: Moved = lambda count: None) -> Ending:
    """Forward blocks in both directions until one channel ends; neither is closed.

    Blocks sent before a channel closed are passed on first. If the receiver is slow, no more is taken from the sender:
    memory stays below the windows of the two channels.

    Args:
        one: a channel.
        other: the other one.
        moved: called with the size of each block passed on from ``one``.
    """
    ways = [asyncio.create_task(_forward(one, other, moved)), asyncio.create_task(_forward(other, one, lambda _: None))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    return next(way.result() for way in ways if way in done)


async def relay(one: Channel, other: Channel, moved: Moved = lambda count: None) -> Ending:
    """Run ``carry``, and then close both: when one ends, so does the other, for the same reason."""
    try:
        ending = await carry(one, other, moved)
    except BaseException:
        one.close("the relay was stopped")
        other.close("the relay was stopped")
        raise
    one.close(str(ending.error))
    other.close(str(ending.error))
    return ending


async def _forward(source: Channel, target: Channel, moved: Moved) -> Ending:
    while True:
        try:
            block = await source.recv_block(target, moved)
        except LinkClosed as error:
            return Ending(source, error)
        try:
            await target.send_block(block)
        except LinkClosed as error:
            return Ending(target, error)
        moved(len(block.content))
        del block  # an idle relay holds no memory: a daemon has two of these for every channel


# ------------------------------------------------------------------ the ways from a kit to its servers


def dialler(kit: Kit, server: str | None = None) -> Callable[[], Awaitable[Pipe]]:
    """Return a function that makes one connection to a server of the kit: it tries all addresses in turn, starting with the last one that worked.

    Args:
        kit: the party's kit.
        server: ``host:port`` in place of the kit's addresses.

    Raises:
        ConfigError: ``server`` is not an address.
        IdentityError: the kit's key cannot be used.
        MissingExtraError: what the transport needs is not installed.
    """
    if server:
        split(server)  # gRPC would choose a port itself, and dial it for ever
    carrier, credentials = transport(kit.transport), kit.credentials()
    known = [(way.address, way.server) for way in kit.ways]
    # The certificate names the server, whatever address is dialled.
    ways = [(server, dict(known).get(server, kit.server.name))] if server else known
    first = 0

    async def dial() -> Pipe:
        nonlocal first
        failed: list[OSError] = []
        for place in [*range(first, len(ways)), *range(first)]:
            address, name = ways[place]
            try:
                pipe = await carrier.dial(address, credentials, name)
            except IdentityError:
                raise
            except OSError as error:
                _LOG.info("server %r cannot be reached at %s: %s", name, address, error)
                failed.append(error)
            else:
                first = place
                return pipe
        raise failed[0] if len(failed) == 1 else PipeClosed("; ".join(map(str, failed)))

    return dial
