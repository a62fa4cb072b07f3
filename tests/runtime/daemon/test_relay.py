"""A relay passes everything on, holds little, and ends with either end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from atoll.engines.link import LinkClosed
from atoll.runtime.daemon.control import carry, relay
from atoll.runtime.identity import Peer
from atoll.runtime.line import Channel, ChannelBlock, Line, LineLost, Settings, local_line
from atoll.runtime.transport import local_pipe

SMALL = Settings(window=1 << 16, block=1 << 10)
NOBODY = Peer("near", "site", "here", 0, "")


async def lines() -> tuple[Line, Line]:
    """Two ends of a line over a pair of sockets."""
    ours, theirs = socket.socketpair()
    pipes = [await local_pipe(sock, NOBODY) for sock in (ours, theirs)]
    one, other = await asyncio.gather(
        local_line(pipes[0], dialled=True, settings=SMALL), local_line(pipes[1], dialled=False, settings=SMALL)
    )
    return one, other


@contextlib.asynccontextmanager
async def chain() -> AsyncIterator[tuple[Channel, Channel, Channel, Channel]]:
    """far left, its end at the front, the front's other end, far right."""
    (far_left, left), (right, far_right) = await lines(), await lines()
    opened: asyncio.Queue[Channel] = asyncio.Queue()
    left.on_open = opened.put_nowait
    first = far_left.open("job")
    near_left = await opened.get()
    far_right.on_open = opened.put_nowait
    near_right = right.open("server")
    last = await opened.get()
    try:
        async with asyncio.timeout(60):
            yield first, near_left, near_right, last
    finally:
        for line in (far_left, left, right, far_right):
            await line.close(within=1)


def test_messages_pass_in_both_directions_unread() -> None:
    async def body() -> int:
        moved: list[int] = []
        async with chain() as (first, a, b, last):
            running = asyncio.create_task(relay(a, b, moved.append))
            large = {"x": np.arange(100_000.0), "text": "é", "none": None}
            for _ in range(3):
                sending = asyncio.create_task(first.send(large))
                got = await last.recv()
                np.testing.assert_array_equal(got["x"], large["x"])
                await sending
                await last.send({"answer": 1})
                assert await first.recv() == {"answer": 1}
            first.close("all is said")
            with pytest.raises(LinkClosed, match="all is said"):
                await last.recv()
            ending = await running
            assert ending.channel is a
            assert b.closed
            return sum(moved)

    assert asyncio.run(body()) > 3 * 800_000


def test_what_was_sent_before_the_end_arrives() -> None:
    async def body() -> list[int]:
        async with chain() as (first, a, b, last):
            for number in range(20):
                await first.send(number)
            first.close()
            running = asyncio.create_task(relay(a, b))
            got = [await last.recv() for _ in range(20)]
            with pytest.raises(LinkClosed, match="closed"):
                await last.recv()
            await running
            return got

    assert asyncio.run(body()) == list(range(20))


def test_a_slow_taker_stops_the_giver() -> None:
    full = 2 * SMALL.window * 0.7

    async def body() -> int:
        async with chain() as (first, a, b, _):
            running = asyncio.create_task(relay(a, b))
            sent = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(
                        0.3 if sent > full else 60
                    ):  # a machine that stands still fills no window
                        await first.send(bytes(8000))
                    sent += 8000
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return sent

    # Each of the two channels holds one window; no more is ever on its way.
    assert full < asyncio.run(body()) <= 2.2 * SMALL.window


def test_a_block_that_waits_for_room_counts_as_not_consumed() -> None:
    async def body() -> None:
        async with chain() as (first, a, b, last):
            running = asyncio.create_task(relay(a, b))
            sending = asyncio.create_task(first.send(bytes(4 * SMALL.window)))
            while b.outbox.room(SMALL.block) or first.outbox.room(SMALL.block) or a.inbox.received < first.outbox.next:
                await asyncio.sleep(0)
            assert a.inbox.consumed == b.outbox.next  # both have an OPEN before the blocks
            assert await last.recv() == bytes(4 * SMALL.window)
            await sending
            running.cancel()

    asyncio.run(body())


class Idle:
    """A channel that takes everything, and has one block to give."""

    def __init__(self, *blocks: ChannelBlock) -> None:
        self.blocks = list(blocks)
        self.taken = 0

    async def recv_block(self, *_: Any) -> ChannelBlock:
        if not self.blocks:
            await asyncio.get_running_loop().create_future()
        return self.blocks.pop()

    async def send_block(self, block: ChannelBlock) -> None:
        self.taken += len(block.content)


def test_a_relay_that_waits_holds_no_block() -> None:
    async def body() -> None:
        content: Any = np.zeros(1000, np.uint8)
        seen = weakref.ref(content)
        one, other = Idle(ChannelBlock(content, 0)), Idle()
        del content
        running = asyncio.create_task(carry(one, other))  # type: ignore[arg-type]
        while not other.taken:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen() is None
        running.cancel()

    asyncio.run(body())


def test_a_lost_line_ends_the_other_channel_only_where_that_is_wanted() -> None:
    async def body() -> None:
        async with chain() as (first, a, b, last):
            running = asyncio.create_task(carry(a, b))
            await first.send(1)
            assert await last.recv() == 1
            a.line.lose(LineLost("it began anew"))
            ending = await running
            assert isinstance(ending.error, LineLost)
            assert ending.channel is a
            assert not b.closed
        async with chain() as (_, a, b, last):
            running = asyncio.create_task(relay(a, b))
            a.line.lose(LineLost("it began anew"))
            with pytest.raises(LinkClosed, match="it began anew"):
                await last.recv()
            await running

    asyncio.run(body())


def test_a_relay_that_is_stopped_tells_both() -> None:
    async def body() -> None:
        async with chain() as (first, a, b, last):
            running = asyncio.create_task(relay(a, b))
            await first.send(1)
            assert await last.recv() == 1
            running.cancel()
            for end in (first, last):
                with pytest.raises(LinkClosed, match="the relay was stopped"):
                    await end.recv()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())
