"""A channel: messages, or the blocks they are made of, in order, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.engines.link import LinkClosed

from ..transport.base import BLOCK, Buffer
from .frames import DROP, END, Frame, Kind
from .incoming import Inbox, IncomingBlocks
from .outgoing import Outbox, Outgoing, PackedMessage

if TYPE_CHECKING:
    from atoll.core.message import Limits

    from ..identity import Peer
    from .settings import Settings

__all__ = ["Bearer", "Channel", "ChannelBlock", "plain"]

_LOG = logging.getLogger("atoll.runtime")
_LONGEST_REASON = 400
_POSTED = 1 << 16  # bytes of a message that is sent without a task


class ChannelBlock(NamedTuple):
    """A part of a message, for code that passes it on without reading it.

    Attributes:
        content: at most 1 MiB.
        flags: whether it is the last of its message, and whether the message was given up; pass them on.
    """

    content: Buffer
    flags: int


class Bearer(Protocol):
    """What a channel needs of the line that carries it: see `atoll.runtime.line.line.Line`."""

    @property
    def peer(self) -> Peer:
        """Return who is at the other end."""
        ...

    @property
    def settings(self) -> Settings:
        """Bounds and paces."""
        ...

    def ready(self, channel: Channel) -> None:
        """Note that a channel has something to write."""
        ...

    def ask(self, channel: Channel) -> None:
        """Ask the other end to say when it has consumed all."""
        ...

    def tell(self, channel: Channel) -> None:
        """Tell the other end what was consumed."""
        ...


class Channel:
    """One of the conversations on a line. Made by ``Line.open`` and handed to ``Line.on_open`` at the other end.

    One task sends at a time (others wait their turn), and one receives. Whatever happens to the connection, each
    message arrives exactly once and in order, or the line is lost. ``close`` every channel: the other end learns of it.

    Attributes:
        name: as it was opened.
        number: odd if the end that dialled opened it.
        line: its line.
    """

    def __init__(self, line: Bearer, number: int, name: str) -> None:
        settings = line.settings
        self.name = name
        self.number = number
        self.line = line
        self.outbox = Outbox(number, settings.window, settings.flight, again=settings.resumes)
        self.inbox = Inbox(number, settings.window, settings.intake)
        self._settings = self._taking = settings
        self._sending = asyncio.Lock()
        self._receiving = False  # whether a task waits for a message
        self._outgoing: Outgoing | None = None  # the message being sent
        self._incoming = IncomingBlocks()
        self._taker: Callable[[Any], bool] | None = None  # gets each message as it arrives
        self._fed: asyncio.Future[bool] | None = None  # whether the taker has enough; false at the end of the channel
        self._target: tuple[Channel, Callable[[int], None]] | None = None  # gets each block as it arrives
        self._moved = asyncio.Event()  # set when something arrives, or at the end
        self._freed = asyncio.Event()  # set when the window has room, or at the end
        self._lost: Exception | None = None
        self.heard = time.monotonic()

    @property
    def peer(self) -> Peer:
        """Return who is at the other end of the line."""
        return self.line.peer

    @property
    def closed(self) -> bool:
        """Tell whether the channel can send no more."""
        return self._lost is not None or self.outbox.closed or self.inbox.reason is not None

    def narrow(self, limits: Limits) -> None:
        """Refuse messages over these limits from now on; the line's limits are for messages of any kind."""
        self._taking = replace(self._taking, limits=limits)

    async def send(self, tree: Any) -> None:
        """Send one message, a tree or a ``Packed``; return when the last block has room in the window.

        If you cancel it midway, both ends drop the message, and you may send the next.

        Raises:
            LinkClosed: one of the ends closed the channel.
            LineLost: the line is lost.
            MessageError: a value that cannot be sent, or a message over the limits.
        """
        async with self._sending:
            outgoing = self._outgoing = Outgoing(tree, self._settings.block, self._settings.limits)
            try:
                self._check()
                while not self._given():
                    await self._word()
                if outgoing.fault is not None:
                    raise outgoing.fault
            except BaseException:
                if outgoing.begun and not (outgoing.done or self.closed):
                    self.outbox.put(Kind.DATA, END | DROP, b"")
                    self.line.ready(self)
                raise
            finally:
                self._outgoing = None

    def post(self, tree: Any) -> bool:
        """Send one short message at once, if no task sends and there is room for all of it; return whether it is sent. If not, ``await send``.

        This spares a short message the tasks, locks and passes of the event loop that a long one needs.

        Raises:
            LinkClosed: one of the ends closed the channel, or the line is lost.
            MessageError: a value that cannot be sent, or a message over the limits.
        """
        if self._sending.locked() or isinstance(tree, PackedMessage):
            return False
        self._check()
        size = M.nbytes(tree, limits=self._settings.limits)
        if size > min(_POSTED, self._settings.block) or not self._has_room(size):
            return False
        self.outbox.put(Kind.DATA, END, M.encode(tree, limits=self._settings.limits), settled=True)
        self.line.ready(self)
        return True

    async def feed(self, taker: Callable[[Any], bool]) -> None:
        """Hand each message on as it arrives, with no task in between; return when the taker wants no more.

        Args:
            taker: called with each message; returns whether it wants more. Its exceptions are raised here.

        Raises:
            LinkClosed, LineLost, MessageError: as in ``recv``.
        """
        self._fed = asyncio.get_running_loop().create_future()
        self._receiving, self._taker = True, taker
        try:
            self._hand_on()
            if not self._fed.done():
                self._check()
            if not await self._fed:
                self._check()
        finally:
            self._receiving, self._taker, self._fed = False, None, None

    def _hand_on(self) -> None:
        """Give the messages that are complete to whoever wants each as it arrives."""
        while self._taker is not None and self._fed is not None and not self._fed.done() and self._gathered():
            try:
                if not self._taker(self._result()) and not self._fed.done():
                    self._fed.set_result(True)
            except Exception as error:  # of what was taken; the connection goes on
                if not self._fed.done():
                    self._fed.set_exception(error)

    async def recv(self) -> Any:
        """Wait for the next message. If you cancel it midway, the part that arrived is kept.

        Raises:
            LinkClosed: the other end closed the channel, and you have received all that it sent.
            LineLost: the line is lost.
            MessageError: what arrived is not a message, or is over the limits; the channel is closed.
        """
        self._receiving = True  # whoever reads the connection puts blocks into the message as they arrive
        try:
            while not self._gathered():
                await self._more()
        finally:
            self._receiving = False
        return self._result()

    def _result(self) -> Any:
        try:
            return self._incoming.result()
        except (MessageError, OSError) as error:
            _LOG.warning("%s: channel %r is closed: %s", self.peer, self.name, error)
            self.close(f"a message was refused: {error}")
            raise

    async def send_block(self, block: ChannelBlock) -> None:
        """Pass on one block, whose content must not change any more. Use a channel for messages or for blocks, not for both.

        Raises:
            LinkClosed: one of the ends closed the channel, or the line is lost.
        """
        async with self._sending:
            if block.flags & DROP:
                self._check()
                self.outbox.put(Kind.DATA, block.flags, b"")
                self.line.ready(self)
            else:
                await self._put(block)

    def _pass_on(self) -> None:
        """Pass on the blocks that the other channel takes now."""
        while self._target is not None and len(self.inbox):
            target, moved = self._target
            frame = self.inbox.first
            if (
                frame.flags & DROP
                or target.closed
                or target._sending.locked()
                or not target._has_room(len(frame.content))
            ):
                return
            self.inbox.lend()
            target.outbox.put(Kind.DATA, frame.flags, frame.content, settled=True)
            target.line.ready(target)
            self.inbox.settle()
            self._tell()
            moved(len(frame.content))

    async def recv_block(
        self, target: Channel | None = None, moved: Callable[[int], None] = lambda size: None
    ) -> ChannelBlock:
        """Wait for the next block.

        The block counts as in transit until you ask for the next one, so ask once you have passed it on. Only the last
        block of a message counts as consumed at once.

        Args:
            target: another channel, which nobody else sends on: meanwhile blocks are passed on to it as they arrive, with no task in between, as long as
                it takes them. What is returned has not been passed on.
            moved: called with the size of each block that was.

        Raises:
            LinkClosed: the other end closed the channel, and you have received all that it sent; or the line is lost.
        """
        if self.inbox.settle():
            self._tell()
        self._target = None if target is None else (target, moved)
        try:
            while not len(self.inbox):
                await self._more()
        finally:
            self._target = None
        frame = self.inbox.lend()
        self._tell()
        return ChannelBlock(frame.content, frame.flags)

    def close(self, reason: str = "") -> None:
        """Stop sending and receiving; what was sent still arrives. A second call does nothing."""
        if not self.outbox.closed and self._lost is None:
            self.outbox.put(Kind.CLOSE, 0, plain(reason).encode())
            self.line.ready(self)
        self.inbox.discard()
        self._incoming.forget()
        self._wake()
        if self._lost is None:
            self._tell()

    # For the line

    def take_frame(self, frame: Frame) -> None:
        """Take a numbered frame from the other end."""
        self.heard = time.monotonic()
        self.inbox.take_frame(frame)
        if self._taker is not None:
            self._hand_on()
        elif self._target is not None:
            self._pass_on()
            if len(self.inbox):
                self._moved.set()
        elif not self._receiving or self._gathered():
            self._moved.set()
        if self.inbox.discarding:
            self._tell()

    def take_close(self, frame: Frame, reason: str) -> None:
        """Handle the other end's close: answer it, and keep what arrived readable."""
        self.inbox.take_frame(frame)
        self.inbox.reason = reason
        if not self.outbox.closed:
            self.outbox.put(Kind.CLOSE, 0, b"")
            self.line.ready(self)
        self._wake()
        self._tell()

    def note_consumed(self, count: int, room: int | None = None) -> None:
        """Note how many frames the other end has consumed, and for how many bytes it has room, if it said so."""
        self.outbox.forget_consumed(count, room)
        self._room_came()

    def note_question(self) -> None:
        """Note that the other end waits to hear that everything that arrived is consumed."""
        self.inbox.note_question()
        self._tell()

    def resume_line(self, received: int, consumed: int) -> None:
        """Resume on a new connection: how much has arrived at the other end, and how much was consumed."""
        self.outbox.forget_consumed(consumed)
        self.outbox.rewind(received)
        self._room_came()

    def lose(self, error: Exception) -> None:
        """Note that the line is lost; messages that arrived may still be read."""
        self._lost = error
        self._wake()

    @property
    def finished(self) -> bool:
        """Tell whether both ends have closed and know it."""
        out, into = self.outbox, self.inbox
        return out.closed and out.first == out.next and into.reason is not None and into.consumed == into.received

    def _wake(self) -> None:
        if self._fed is not None and not self._fed.done():
            self._fed.set_result(False)
        self._moved.set()
        self._freed.set()

    def _check(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args) from self._lost.__cause__
        if self.inbox.reason is not None:
            raise LinkClosed(self.inbox.reason or f"the other end closed channel {self.name!r}")
        if self.outbox.closed:
            raise LinkClosed(f"channel {self.name!r} is closed at this end")

    def _given(self) -> bool:
        """Put in as much of the message being sent as there is room for; return whether that completes it."""
        outgoing = self._outgoing
        while outgoing is not None and outgoing.next and not self.closed:
            if not self._has_room(outgoing.size):
                return False
            self.outbox.put(
                Kind.DATA, END * outgoing.last, *outgoing.next, settled=outgoing.settled, shared=outgoing.shared
            )
            self.line.ready(self)
            outgoing.note_sent()
        return True

    def _has_room(self, size: int) -> bool:
        if self.outbox.room(size):
            return True
        if self.outbox.must_ask():
            self.line.ask(self)
        return False

    def _room_came(self) -> None:
        if self._given():  # otherwise the sender waits for the next acknowledgement
            self._freed.set()

    async def _word(self) -> None:
        """Wait until there may be room, or the channel is closed."""
        self._freed.clear()
        await self._freed.wait()
        self._check()

    async def _put(self, block: ChannelBlock) -> None:
        size = len(block.content)
        if size > BLOCK:
            raise MessageError(f"a block has {size} bytes", where="channel", remedy=f"send at most {BLOCK} bytes")
        self._check()
        while not self._has_room(size):
            await self._word()
        self.outbox.put(Kind.DATA, block.flags, block.content, settled=True)
        self.line.ready(self)

    def _tell(self) -> None:
        """Tell the other end what was consumed, if that is enough to be worth a frame."""
        if self.inbox.worth_telling():
            self.line.tell(self)

    async def _more(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()

    def _gathered(self) -> bool:
        """Add what has arrived to the message that a task waits for; return whether it is complete."""
        while len(self.inbox) and not self._incoming.whole:
            self._incoming.add(self.inbox.pop(), self._taking)
            self._tell()
        return self._incoming.whole


def plain(text: str) -> str:
    """Return a text as one printable line of bounded length."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "…"
