"""What pipes over sockets promise beyond what every pipe does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from atoll.runtime.identity import peer_of
from atoll.runtime.transport import Pipe, PipeClosed, local_pipe, transport
from atoll.runtime.transport.base import LARGEST
from atoll.runtime.transport.framed import FramedPipe
from tests.support.certificates import authority

SERVER = authority().issue("server", "hub")
SITE = authority().issue("site", "north")
KINDS = ["local", "tcp"]
MANY = 40
BLOCK = 1 << 20


def run(play: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def connected(kind: str) -> AsyncIterator[tuple[Pipe, Pipe]]:
    if kind == "local":
        pipes = [await local_pipe(sock, peer_of(SITE.certificate)) for sock in socket.socketpair()]
        yield pipes[0], pipes[1]
        await asyncio.gather(*(pipe.close() for pipe in pipes))
        return
    came: asyncio.Queue[Pipe] = asyncio.Queue()
    way = transport("tcp")
    listener = await way.listen("127.0.0.1:0", SERVER, came.put)
    dialled = await way.dial(listener.address, SITE)
    yield dialled, await came.get()
    await dialled.close()
    await listener.close()


def block(number: int, size: int = BLOCK) -> bytes:
    return number.to_bytes(4, "little") + bytes([number % 251]) * (size - 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_send_that_is_cancelled_in_the_middle_ends_the_pipe_and_hands_on_no_half_block(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, other):

            async def flood() -> None:
                for number in range(1000):
                    await one.send(block(number))

            flooding = asyncio.create_task(flood())
            await other.recv()  # it flows; and from now on nobody reads, until the sender waits
            while not getattr(one, "_room"):  # noqa: B009 - what it waits with
                await asyncio.sleep(0.001)
            flooding.cancel()
            await asyncio.wait([flooding])
            assert flooding.cancelled()
            with pytest.raises(PipeClosed, match="a block was cut off"):
                await one.send(b"x")

            async def hear() -> None:
                number = 1
                while True:
                    assert bytes(await other.recv()) == block(number)
                    number += 1

            with pytest.raises(PipeClosed, match=r"\w"):
                await hear()

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sent_before_the_end_arrives_though_the_other_end_was_sending_too(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, other):
            for number in range(3):
                await other.send(block(number, 50_000))  # never read: a socket closed over these takes back its own
            for number in range(8):
                await one.send(block(number, 60_000))
            closing = asyncio.create_task(one.close())
            for number in range(8):
                assert bytes(await other.recv()) == block(number, 60_000)
            # Within a machine the system also says that the other end had not read all.
            with pytest.raises(PipeClosed, match="closed the connection" if kind == "tcp" else "reset by peer"):
                await other.recv()
            await closing

    run(play)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5_000, 16_384, 100_000])
def test_a_receiver_that_pauses_after_each_block_misses_none(kind: str, size: int) -> None:
    """Reading stops at four blocks; TLS may hold the next ones already, where the system has nothing more to tell."""

    async def play() -> None:
        async with connected(kind) as (one, other):

            async def say() -> None:
                for number in range(MANY):
                    await one.send(number.to_bytes(4, "little"), bytes(size))

            saying = asyncio.create_task(say())
            for number in range(MANY):
                for _ in range(5):
                    await asyncio.sleep(0)
                assert bytes(await other.recv()) == number.to_bytes(4, "little") + bytes(size)
            await saying

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_posted_arrives_in_order_though_the_last_block_found_no_room(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, other):
            assert isinstance(one, FramedPipe)
            number = 0
            while one.post(block(number, 9_000)):  # until the system takes no more: nobody reads
                number += 1
            finishing = asyncio.create_task(one.send())
            for expected in range(number + 1):
                assert bytes(await other.recv()) == block(expected, 9_000)
            await finishing
            await one.send(b"behind it")
            assert bytes(await other.recv()) == b"behind it"
            with pytest.raises(PipeClosed, match="are allowed"):
                one.post(bytes(LARGEST + 1))
            await one.close()
            assert not one.post(b"x")

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_fed_as_they_come_until_no_more_are_wanted_or_one_is_refused(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, other):
            assert isinstance(other, FramedPipe)
            for number in range(9):
                await one.send(block(number, 5_000))
            assert bytes(await other.recv()) == block(0, 5_000)
            fed: list[bytes] = []

            def take(came: memoryview) -> bool:
                fed.append(bytes(came))
                return len(fed) < 5

            await other.feed(take)
            assert fed == [block(number, 5_000) for number in range(1, 6)]

            def refuse(came: memoryview) -> bool:
                raise ValueError(f"{bytes(came)[0]} is refused")

            with pytest.raises(ValueError, match="6 is refused"):
                await other.feed(refuse)
            for number in (7, 8):  # they are not lost
                assert bytes(await other.recv()) == block(number, 5_000)
            await one.close()
            with pytest.raises(PipeClosed, match="closed the connection"):
                await other.feed(take)

    run(play)
