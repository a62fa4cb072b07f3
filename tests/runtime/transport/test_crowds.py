"""Crowds: those that connect at once are not kept waiting, those that say nothing hold nobody up, and none of them fills the log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket

import pytest
from certificates import authority

from atoll.core.time.clock import run
from atoll.runtime.identity import peer_of
from atoll.runtime.transport import Pipe, handshakes, transport
from atoll.runtime.transport import tcp as tcp_module
from atoll.runtime.transport.base import PipeClosed
from atoll.runtime.transport.doorway import PENALTY, Doorway, Visitor
from atoll.runtime.transport.handshakes import Handshakes
from atoll.runtime.transport.refused import RefusalLog

SERVER = authority().issue("server", "hub")
SITE = authority().issue("site", "north")


class Table:
    """A table of connections that takes 5 ms to read, and a clock that only reading moves."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], int] = {}
        self.readings = 0
        self.now = 0.0

    def read(self, port: int) -> dict[tuple[str, int], int]:
        assert port == 4711
        self.readings += 1
        self.now += 0.005
        return dict(self.rows)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr(handshakes, "connections_to", made.read)
    monkeypatch.setattr(handshakes, "time", made)
    return made


def test_the_table_is_read_for_some_of_a_crowd_and_the_next_look_finds_the_others(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        watch = Handshakes(RefusalLog())
        watch._table = True
        watch.at(4711)
        for number in range(1000):
            table.rows["10.0.0.1", number] = 1  # established
            watch.begun()
        # 0.1 s of reading at once, and a twentieth of the time since: 21 or 22 readings of 5 ms
        assert 21 <= table.readings <= 24  # one of them at the beginning
        await asyncio.sleep(0)  # what threads of gRPC's have said is heard
        for number in range(999):
            watch.called(f"ipv4:10.0.0.1:{number}")
        watch._look()
        assert caplog.messages == []
        table.rows["10.0.0.1", 999] = 6  # TIME_WAIT: it left without a word
        watch._look()
        watch.close()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(play())
    (line,) = caplog.messages
    assert line.startswith("a connection from 10.0.0.1:999 is refused")


def test_of_a_crowd_that_has_left_before_anybody_looked_everyone_is_counted(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        refused = RefusalLog()
        watch = Handshakes(refused)
        watch._table = True
        table.rows["10.0.0.9", 1] = 6  # of a server that was here before
        watch.at(4711)
        for number in range(100):
            table.rows["10.0.0.1", number] = 1
            watch.begun()
            if number >= 50:  # beyond what is read, and gone at once
                del table.rows["10.0.0.1", number]
        await asyncio.sleep(0)
        for number in range(50):
            watch.called(f"ipv4:10.0.0.1:{number}")
            watch.called(f"ipv4:10.0.0.1:{number}")  # another call over the same connection
        watch._look()
        watch._look()
        watch.close()
        refused.close()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(play())
    *lines, last = caplog.messages
    assert len(lines) == 10
    assert all(line.startswith("a connection is refused: it ended before its handshake was done") for line in lines)
    assert last.startswith("40 more connections from somewhere were refused")


def test_a_crowd_that_says_nothing_is_turned_out_and_who_shows_a_certificate_is_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    most = 0

    class Narrow(Doorway):
        def enter(self, visitor: Visitor) -> None:
            nonlocal most
            super().enter(visitor)
            most = max(most, len(self._inside))

    monkeypatch.setattr(tcp_module, "Doorway", functools.partial(Narrow, most=4, quiet=0.001))

    async def play() -> None:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        way = transport("tcp")
        listener = await way.listen("127.0.0.1:0", SERVER, came.put)
        host, _, port = listener.address.rpartition(":")
        crowd = [await asyncio.open_connection(host, int(port)) for _ in range(30)]
        dialled = await way.dial(listener.address, SITE)
        assert (await came.get()).peer == peer_of(SITE.certificate)
        await dialled.close()
        await listener.close()
        for _, writer in crowd:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(asyncio.wait_for(play(), 20))
    assert most == 4
    words = "it sent nothing, and too many such connections wait"
    turned_out = [line for line in caplog.messages if line.endswith(f"is refused: {words}")]
    assert len(turned_out) == 10  # at least 27 had to go before the site came: the first ten are told
    (rest,) = [line for line in caplog.messages if "more connections" in line]
    assert rest.endswith(f" more connections from 127.0.0.1 were refused: {words}")
    assert 17 <= int(rest.split()[0]) <= 20


def test_a_connection_whose_task_is_stopped_before_its_first_step_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        listener = await transport("tcp").listen("127.0.0.1:0", SERVER, Pipe.close)

        def stop() -> None:
            for task in listener._tasks:  # type: ignore[attr-defined]
                task.cancel()

        # Between the moment when the task is made and its first step, as where the listener is closed just then.
        monkeypatch.setattr(Doorway, "enter", lambda *_: asyncio.get_running_loop().call_soon(stop))
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await listener.close()

    asyncio.run(asyncio.wait_for(play(), 20))


def test_the_log_of_refusals_is_bounded_whatever_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        refused = RefusalLog()
        for number in range(1000):
            refused.connection(f"10.0.{number // 250}.{number % 250}", 1, "no certificate")
            refused.connection("192.0.2.1", number, "expired")
        before = len(caplog.messages)
        assert before == 10 + 63 + 10  # of one origin, of each of the first others once, of all the rest
        refused.close()
        assert sorted(caplog.messages[before:]) == [
            "927 more connections from other places were refused: for whatever reason",
            "990 more connections from 192.0.2.1 were refused: expired",
        ]
        refused.connection("192.0.2.1", 1, "expired")  # a new window
        assert len(caplog.messages) == before + 3
        refused.close()
        assert len(caplog.messages) == before + 3

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(play())


def test_a_crowd_of_thousands_that_says_nothing_delays_nobody() -> None:
    """3,000 idle connections, more than the system queues; a site comes behind all of them."""
    count = 3000

    async def play() -> float:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        told: list[tuple[str, str, int]] = []
        way = transport("tcp")
        listener = await way.listen("127.0.0.1:0", SERVER, came.put, on_refused=lambda *words: told.append(words))
        host, _, port = listener.address.rpartition(":")
        loop = asyncio.get_running_loop()
        crowd = [socket.socket() for _ in range(count)]
        for one in crowd:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect((host, int(port)))
        begun = loop.time()
        dialled = await way.dial(listener.address, SITE)
        took = loop.time() - begun
        assert (await came.get()).peer == peer_of(SITE.certificate)
        await dialled.close()
        for one in crowd:
            one.close()
        await listener.close()
        assert len(told) <= 8, told  # each kind once, and the rest in one number
        return took

    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * count + 1000:
        pytest.skip("so many connections are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 1000), hard))
    try:
        # Where each of 256 places could be held for five seconds, the site waited for more than fifteen, and gave up.
        assert asyncio.run(asyncio.wait_for(play(), 60)) < 15
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_whose_handshakes_fail_is_throttled_and_another_is_not() -> None:
    async def play() -> None:
        doorway = Doorway(most=8, quiet=60.0)
        loop = asyncio.get_running_loop()

        def visitor(host: str, spoke: bool = True) -> Visitor:
            made = Visitor(socket.socket(), host, 1)
            made.spoke = spoke
            made.sock.close()
            return made

        for _ in range(30):
            doorway.failed(visitor("10.0.0.1", spoke=False))  # a silent one is no failure
        assert not doorway.throttled("10.0.0.1")
        for _ in range(20):
            doorway.failed(visitor("10.0.0.1"))
        assert doorway.throttled("10.0.0.1")
        assert not doorway.throttled("10.0.0.2")
        begun = loop.time()
        await doorway.pause(visitor("10.0.0.2"))
        assert loop.time() - begun < PENALTY
        await doorway.pause(visitor("10.0.0.1"))
        assert loop.time() - begun >= PENALTY
        # One that waits makes room for another.
        inside = [visitor("10.0.0.1") for _ in range(32)]
        for one in inside:
            doorway.enter(one)
        waiting = [asyncio.create_task(doorway.pause(one)) for one in inside]
        await asyncio.sleep(0)
        await doorway.pause(visitor("10.0.0.1"))
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert len([error for error in ended if isinstance(error, PipeClosed)]) == 1

    run(play(), virtual=True)


def test_refusals_are_told_once_each_and_the_rest_as_a_number() -> None:
    async def play() -> None:
        told: list[tuple[str, str, int]] = []
        refused = RefusalLog(lambda *words: told.append(words))
        for number in range(100):
            refused.connection(f"10.0.0.{number}", 1, "expired")
            refused.connection("192.0.2.1", number, "expired")
        assert [count for *_, count in told] == [1] * 8
        refused.close()
        assert told[8:] == [("other places", "for whatever reason", 192)]
        refused.close()
        assert len(told) == 9

    asyncio.run(play())
