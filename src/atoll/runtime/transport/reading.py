"""A connection whose blocks are read: one at a time on request, or handed on as they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from .base import PipeClosed
from .ends import NOT_NOW, End
from .framing import IncomingFrames

__all__ = ["TURN", "Reader", "resolve"]

TURN = 1 << 20
"""Bytes read or written before other tasks get a turn."""
_WAITING = 4  # blocks held before reading pauses


class Reader:
    """The half of a pipe over a socket that reads, and the end of both.

    Args:
        end: the socket.
        largest: bytes of one block, at most.

    Attributes:
        heard: when the last byte arrived, in seconds of the event loop's clock.
        ended: why the pipe is closed; None while it is open.
    """

    def __init__(self, end: End, largest: int) -> None:
        self.ended: str | None = None
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._end = end
        self._fd = end.fileno()
        self._blocks: deque[memoryview] = deque()
        self._taker: Callable[[memoryview], bool] | None = None
        self._came: asyncio.Future[bool] | None = None  # a task that waits for a block
        self._gone = asyncio.Event()  # set once the socket is closed
        self._reading = False
        self._incoming = IncomingFrames(largest)
        self._read_on()

    async def recv(self) -> memoryview:
        """Wait for the next block."""
        while not self._blocks:
            if self.ended is not None:
                raise PipeClosed(self.ended)
            self._read_on()
            self._came = self._loop.create_future()
            try:
                await self._came
            finally:
                self._came = None
        block = self._blocks.popleft()
        self._read_on()
        return block

    async def feed(self, taker: Callable[[memoryview], bool]) -> None:
        """Hand each block on as it arrives, with no task in between; return when the taker wants no more.

        Args:
            taker: called with each block; returns whether it wants more. Its exceptions are raised here.

        Raises:
            PipeClosed: as in ``recv``.
        """
        while self._blocks:
            if not taker(self._blocks.popleft()):
                return
        self._taker, self._came = taker, self._loop.create_future()
        try:
            self._read_on()
            if self.ended is None and await self._came:
                return
            raise PipeClosed(self.ended or "the pipe is closed")
        finally:
            self._taker = self._came = None

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self._finish(why)
        self._let_go()

    def _finish(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
        resolve(self._came, False)

    def _over(self, error: Exception | None) -> None:
        """Note that the connection is gone."""
        if error is None and not self._incoming.between:
            self._finish("the connection ended in the middle of a block")
        self._finish(f"the connection was lost: {error}" if error else "the other end closed the connection")
        self._let_go()

    def _let_go(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._reading = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._end.close()

    def _read_on(self) -> None:
        if self._reading or self.ended is not None:
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._read)
        if self._end.hides:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read what is here, within one turn and as long as blocks are wanted."""
        taken = 0
        try:
            while self._reading and taken < TURN:
                count = self._end.read(self._incoming.places)
                if count == 0:
                    self._over(None)
                    return
                taken += count
                self._took(count)
                if self._incoming.between and self._end.drained():
                    break  # spares a read that would find nothing
        except NOT_NOW:
            pass
        except PipeClosed as error:
            self.abort(str(error))
            return
        except OSError as error:
            self._over(error)
            return
        if taken:
            self.heard = self._loop.time()
        if taken >= TURN and self._reading and self._end.hides:
            self._loop.call_soon(self._read)

    def _took(self, count: int) -> None:
        block = self._incoming.took(count)
        if block is None:
            return
        if self._taker is None:
            self._blocks.append(block)
            resolve(self._came, True)
            if len(self._blocks) >= _WAITING:
                self._pause()
        else:
            self._hand_on(block, self._taker)
        self._incoming.go_on()

    def _hand_on(self, block: memoryview, taker: Callable[[memoryview], bool]) -> None:
        try:
            if taker(block):
                return
            resolve(self._came, True)
        except Exception as error:  # the caller of `feed` must know
            if self._came is not None and not self._came.done():
                self._came.set_exception(error)
        self._taker = None
        self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)


def resolve(future: asyncio.Future[Any] | None, result: object) -> None:
    """Set a future's result if there is one that is not done."""
    if future is not None and not future.done():
        future.set_result(result)
