"""Channels over one connection that stays: messages, blocks, order, ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.errors import ConfigError, MessageError
from atoll.core.persistence.records import Allowance
from atoll.engines.link import LinkClosed
from atoll.runtime.identity import Peer
from atoll.runtime.line import Channel, ChannelBlock, Line, LineLost, PackedMessage, Settings, local_line
from atoll.runtime.line.frames import END, Frame, Kind, SharedContent, parse
from atoll.runtime.line.incoming import Assembly
from atoll.runtime.transport import local_pipe

SERVER = Peer("hub", "server", "Hub", 1, "00", "study")
SITE = Peer("north", "site", "North", 2, "01", "study")


def run(coroutine: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def two(settings: Settings | None = None) -> AsyncIterator[tuple[Line, Line]]:
    """A front's end, and a job process's."""
    one, other = socket.socketpair()
    front, job = await asyncio.gather(local_pipe(one, SITE), local_pipe(other, SERVER))
    lines = await asyncio.gather(
        local_line(front, dialled=False, settings=settings), local_line(job, dialled=True, settings=settings)
    )
    yield lines[0], lines[1]
    await asyncio.gather(*(line.close() for line in lines))


async def joined(left: Line, right: Line, name: str = "job") -> tuple[Channel, Channel]:
    found: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
    right.on_open = found.set_result
    return left.open(name), await found


def test_messages_of_any_size_come_as_they_were() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            assert (there.name, there.peer) == ("job", SERVER)
            trees = [None, {"a": [1, (2.5, "x")]}, {"w": np.arange(3_000_001, dtype=np.float32)}, {"t": b"x" * 999}]
            for tree in trees:
                sending = asyncio.create_task(here.send(tree))
                assert M.equal(await there.recv(), tree)
                await sending

    run(play())


def test_arrays_that_end_anywhere_fill_blocks_all_the_same() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            layers = {f"layer {number}": np.arange(60_000.0 + number) for number in range(20)}  # 0.5 MiB each
            for tree in (layers, PackedMessage(layers)):
                before = there.inbox.received
                sending = asyncio.create_task(here.send(tree))
                assert M.equal(await there.recv(), layers)
                await sending
                assert there.inbox.received - before == -(-M.nbytes(layers) // (1 << 20)) == 10

    run(play())


def test_a_message_of_which_a_later_block_cannot_be_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with two(Settings(window=5 << 20)) as lines:
            here, there = await joined(*lines)
            weights = np.zeros(2_000_000)  # more than the window: later blocks are made as word comes
            encoded = M.encode_blocks

            def faulty(*args: Any, **options: Any) -> Any:
                yield from itertools.islice(encoded(*args, **options), 12)
                raise MemoryError("no room for a copy")

            with monkeypatch.context() as patch:
                patch.setattr(M, "encode_blocks", faulty)
                sending = asyncio.create_task(here.send({"w": weights}))
                waiting = asyncio.create_task(there.recv())
                with pytest.raises(MemoryError, match="no room for a copy"):
                    await sending
            sending = asyncio.create_task(here.send("next"))
            assert await waiting == "next"
            await sending

    run(play())


def test_lines_in_step_send_one_block_and_others_the_same_bytes() -> None:
    shared = SharedContent(b"weights")
    first, later = Frame(Kind.DATA, END, 1, 7, shared.content, shared=shared), Frame(Kind.DATA, END, 1, 8, b"weights")
    (block,) = first.joined
    assert block == b"".join(first.parts)
    assert shared.content == b"weights"
    assert first._replace(content=shared.content).joined[0] is block  # the next line sends the very same
    (other,) = later._replace(shared=shared).joined
    assert other == b"".join(later.parts)
    assert parse(other)[:5] == later[:5]
    assert first.joined[0] is block  # what went elsewhere in between changes nothing


def test_what_is_sent_may_change_afterwards() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            weights = np.ones(100_000)
            await here.send({"w": weights})
            packed = PackedMessage({"w": weights})
            weights[:] = 7
            await here.send(packed)
            for _ in range(2):
                assert (await there.recv())["w"].max() == 1

    run(play())


def test_a_closed_channel_says_why_after_all_that_was_sent() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            await here.send("last words")
            here.close("the job was stopped")
            assert await there.recv() == "last words"
            with pytest.raises(LinkClosed, match="the job was stopped"):
                await there.recv()
            with pytest.raises(LinkClosed, match="the job was stopped"):
                await there.send("?")
            with pytest.raises(LinkClosed, match="closed at this end"):
                await here.send("!")

    run(play())


def test_both_ends_forget_a_channel_that_both_closed() -> None:
    async def play() -> None:
        async with two() as lines:
            for number in range(50):
                here, there = await joined(*lines, f"job {number}")
                await there.send(number)
                assert await here.recv() == number
                here.close()
                with pytest.raises(LinkClosed, match="closed"):
                    await there.recv()
                there.close()
            last, there = await joined(*lines, "last")
            await last.send(0)
            await there.recv()
            assert [len(line.table) for line in lines] == [1, 1]

    run(play())


def test_a_lost_line_ends_its_channels() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            waiting = asyncio.create_task(there.recv())
            await lines[0].close("the server goes down")
            with pytest.raises(LinkClosed, match="the server goes down"):
                await waiting
            with pytest.raises(LinkClosed, match="closed"):
                await here.recv()
            await lines[1].lost.wait()
            with pytest.raises(LineLost, match="the server goes down"):
                lines[1].open("another")
            with pytest.raises(LineLost, match="closed at this end"):
                lines[0].open("another")

    run(play())


def test_a_process_that_dies_ends_the_line() -> None:
    async def play() -> None:
        async with two() as lines:
            _, there = await joined(*lines)
            assert lines[0].loop is not None
            await lines[0].loop.pipe.close()
            with pytest.raises(LineLost, match="is gone"):
                await there.recv()

    run(play())


def test_long_messages_share_some_memory_and_get_it_back(tmp_path: Path) -> None:
    async def play() -> None:
        held = Allowance(20 << 20)
        async with two(Settings(spool=tmp_path, spool_over=1 << 16, held=held)) as lines:
            here, there = await joined(*lines)
            tree = {"w": np.arange(1_000_003.0)}
            came = []
            for _ in range(3):
                sending = asyncio.create_task(here.send(tree))
                came.append(await there.recv())
                await sending
                assert came[-1]["w"].ctypes.data % 64 == 0
                assert not came[-1]["w"].flags.writeable
            assert held.used == 2 * M.nbytes(tree)  # the third found no room
            assert all(M.equal(one, tree) for one in came)
            came.clear()
            assert held.used == 0

    run(play())


def test_many_messages_that_are_not_long_take_no_more_memory_either(tmp_path: Path) -> None:
    """Early replies of many clients: each is short, and together they would fill the server."""
    held = Allowance(1 << 20)
    settings = Settings(spool=tmp_path, held=held)
    raw = M.encode({"w": np.arange(12_500.0)})  # 100 kB
    came = []
    for _ in range(40):
        whole = Assembly(settings)
        whole.add(raw)
        came.append(whole.result())
        whole.close()
    assert held.used == 10 * len(raw)
    assert sum(_mapped(one["w"]) for one in came) == 30
    assert all(M.equal(one, came[0]) for one in came)


def _mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def test_long_messages_go_through_a_file_that_has_no_name(tmp_path: Path) -> None:
    async def play() -> None:
        async with two(Settings(spool=tmp_path, spool_over=1 << 16, held=Allowance(0))) as lines:
            here, there = await joined(*lines)
            tree = {"w": np.arange(1_000_003.0), "s": "x"}
            sending = asyncio.create_task(here.send(PackedMessage(tree, spool=tmp_path, spool_over=1 << 16)))
            came = await there.recv()
            await sending
            assert list(tmp_path.iterdir()) == []
            assert M.equal(came, tree)
            assert came["w"].ctypes.data % 64 == 0
            assert not came["w"].flags.writeable

    run(play())


def test_a_relay_passes_blocks_on_without_reading_them() -> None:
    async def relay(source: Channel, sink: Channel) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                await sink.send_block(await source.recv_block())

    async def play() -> None:
        async with two() as first, two() as second:
            near, in_front = await joined(*first)
            behind, far = await joined(*second)
            relaying = asyncio.create_task(relay(in_front, behind))
            tree = {"w": np.arange(900_000.0)}
            sending = asyncio.create_task(near.send(tree))
            assert M.equal(await far.recv(), tree)
            await sending
            relaying.cancel()

    run(play())


def test_a_sender_whose_room_others_took_in_the_middle_of_its_message_goes_on() -> None:
    """It was not told of the block that it had room beyond, and has to ask."""
    block = ChannelBlock(bytes(1 << 20), 0)

    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            await here.send_block(block)
            for _ in range(6):
                other, _ = await joined(*lines)
                await other.send_block(block)
            await there.recv_block()
            for _ in range(3):
                taking = asyncio.create_task(there.recv_block())  # with that the last one is consumed
                await here.send_block(block)
                await taking

    run(play())


def test_a_message_given_up_half_way_is_dropped_and_the_next_arrives() -> None:
    async def play() -> None:
        async with two(Settings(window=5 << 20)) as lines:
            here, there = await joined(*lines)
            stuck = asyncio.create_task(here.send({"w": np.zeros(2_000_000)}))  # more than the window
            while here.outbox.room(1 << 20):
                await asyncio.sleep(0)
            stuck.cancel()
            await asyncio.wait([stuck])
            assert stuck.cancelled()
            sending = asyncio.create_task(here.send("next"))
            assert await there.recv() == "next"
            await sending

    run(play())


def test_whoever_is_cancelled_while_waiting_for_a_message_loses_nothing_of_it() -> None:
    async def play() -> None:
        async with two(Settings(block=1 << 16)) as lines:
            here, there = await joined(*lines)
            trees = [{"n": number, "w": np.arange(50_000.0) + number} for number in range(40)]
            sending = asyncio.create_task(all_of(here, trees))
            came: list[Any] = []
            steps = 0
            while len(came) < len(
                trees
            ):  # cancelled after 0, 1, 2 … steps of the loop: before a block, between two, and after the last
                waiting = asyncio.create_task(there.recv())
                for _ in range(steps % 7):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                came += [] if waiting.cancelled() else [waiting.result()]
                steps += 1
            assert all(M.equal(one, tree) for one, tree in zip(came, trees, strict=True))
            assert steps > len(trees)
            await sending

    async def all_of(channel: Channel, trees: list[Any]) -> None:
        for tree in trees:
            await channel.send(tree)

    run(play())


def test_a_message_that_was_refused_while_nobody_waited_is_refused_to_the_next() -> None:
    async def play() -> None:
        async with two() as lines:
            here, there = await joined(*lines)
            waiting = asyncio.create_task(there.recv())
            await asyncio.sleep(0)
            await here.send_block(ChannelBlock(b"ATOLnonsense" * 10, 1))
            while there.inbox.consumed < 2:  # its opening, and the block
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            with pytest.raises(MessageError, match="format version"):
                await there.recv()

    run(play())


def test_whoever_is_stopped_once_all_has_gone_drops_nothing() -> None:
    async def play() -> None:
        async with two(Settings(window=5 << 20)) as lines:
            here, there = await joined(*lines)
            tree = {"w": np.arange(1_000_000.0)}  # more than the window: its last block goes as word comes
            sending = asyncio.create_task(here.send(tree))
            waiting = asyncio.create_task(there.recv())
            while here.outbox.next < 9:  # its opening, and eight blocks
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            assert M.equal(await waiting, tree)
            assert here.outbox.next == 9

    run(play())


def test_a_stalled_channel_stalls_no_other_and_holds_no_more_than_its_window() -> None:
    async def play() -> None:
        settings = Settings(window=1 << 20, block=1 << 16)
        async with two(settings) as lines:
            stalled, reader = await joined(*lines, "stalled")
            lively, there = await joined(*lines, "lively")
            big = {"w": np.arange(1_000_000.0)}
            sending = asyncio.create_task(stalled.send(big))
            for number in range(200):
                await lively.send({"n": number, "w": np.zeros(5000)})
                assert (await there.recv())["n"] == number
            assert not sending.done()
            assert reader.inbox.held <= settings.window
            assert stalled.outbox.held <= settings.window
            assert M.equal(await reader.recv(), big)
            await sending

    run(play())


def test_what_processes_of_a_machine_have_on_their_way_to_each_other_is_little() -> None:
    async def play() -> None:
        async with two() as lines:
            ends = [await joined(*lines, f"job {number}") for number in range(8)]
            tree = {"w": np.arange(600_000.0)}
            sending = [asyncio.create_task(here.send(tree)) for here, _ in ends]
            while any(here.outbox.room(1 << 20) for here, _ in ends):
                await asyncio.sleep(0)
            # Shares of 8 MiB as channels begin: 4.6 (all of it) and 4 MiB, 2.7, 2, and 1.6 or 1.5 MiB each; of 32 MiB it would be all, 36 MiB.
            assert sum(here.outbox.held for here, _ in ends) < 20 << 20
            for _, there in ends:
                assert M.equal(await there.recv(), tree)
            await asyncio.gather(*sending)

    run(play())


def test_what_is_no_message_closes_its_channel_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with two(Settings(limits=M.Limits(max_bytes=1 << 20))) as lines:
            here, there = await joined(*lines, "bad")
            from atoll.runtime.line import ChannelBlock

            await here.send_block(ChannelBlock(b"ATOLnonsense" * 10, 1))
            with pytest.raises(MessageError, match="format version"):
                await there.recv()
            with pytest.raises(LinkClosed, match="a message was refused"):
                await here.recv()
            good, there = await joined(*lines, "good")
            await good.send(1)
            assert await there.recv() == 1

    run(play())
    assert "channel 'bad' is closed" in caplog.text


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="window is 1000"):
        Settings(window=1000)
    with pytest.raises(ConfigError, match="block is 2097152"):
        Settings(block=2 << 20)
    with pytest.raises(ConfigError, match="silence is 0"):
        Settings(silence=0)
