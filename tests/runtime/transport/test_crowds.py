"""Crowds: those that connect at once are not kept waiting, those that say nothing hold nobody up, and none of them fills the log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from atoll.core.time.clock import run
from atoll.runtime.identity import peer_of
from atoll.runtime.transport import Pipe, rpc, transport
from atoll.runtime.transport import tcp as tcp_module
from atoll.runtime.transport.base import AT_ONCE, PENALTY, FailedHandshakes, PipeClosed, RefusalLog
from atoll.runtime.transport.rpc import Accepted, AcceptedConnections, Handshakes, Remote, end, has_files
from atoll.runtime.transport.sockets import MOST, PendingConnection, PendingConnections
from tests.support.certificates import authority

SERVER = authority().issue("server", "hub")
SITE = authority().issue("site", "north")


class Doors:
    """Connections that take 5 ms to look at, and a clock that only looking moves."""

    def __init__(self) -> None:
        self.open: dict[Remote, Accepted] = {}
        self.ended: list[Remote] = []
        self.looks = 0
        self.now = 100.0

    def come(self, host: str, port: int) -> Remote:
        self.open[host, port] = Accepted((host, port), port, len(self.open) + len(self.ended) + 1000 * port)
        return host, port

    def look(self) -> list[Accepted]:
        self.looks += 1
        self.now += 0.005
        return list(self.open.values())

    def end(self, found: Accepted) -> bool:
        self.ended.append(found.remote)
        return self.open.pop(found.remote, None) is not None

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Doors:
    made = Doors()
    monkeypatch.setattr(rpc, "AcceptedConnections", lambda port, host: made)
    monkeypatch.setattr(rpc, "end", made.end)
    monkeypatch.setattr(rpc, "time", made)
    return made


def watched(body: Callable[[Handshakes], Awaitable[None]], **bounds: Any) -> None:
    """Run a test's body with a watch over the doors."""

    async def play() -> None:
        refused = RefusalLog()
        watch = Handshakes(refused, **bounds)
        watch.at(4711)
        await body(watch)
        watch.close()
        refused.close()

    asyncio.run(play())


def test_a_look_is_taken_for_some_of_a_crowd_and_the_next_one_finds_the_others(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(watch: Handshakes) -> None:
        for number in range(1000):
            doors.come("10.0.0.1", number)
            watch.note_connection()
        # 0.1 s of looking at once, and a twentieth of the time since: 21 or 22 looks of 5 ms
        assert 20 <= doors.looks <= 23
        await asyncio.sleep(0)  # what threads of gRPC's have said is heard
        for number in range(999):
            watch.note_call(f"ipv4:10.0.0.1:{number}")
        watch._look()
        assert caplog.messages == []
        del doors.open["10.0.0.1", 999]  # it left without a word
        watch._look()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        watched(body, most=2000)
    (line,) = caplog.messages
    assert line.startswith("a connection from 10.0.0.1:999 is refused")


def test_of_a_crowd_that_has_left_before_anybody_looked_everyone_is_counted(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(watch: Handshakes) -> None:
        for number in range(100):
            doors.come("10.0.0.1", number)
            watch.note_connection()
            if number >= 50:  # beyond what is looked at, and gone at once
                del doors.open["10.0.0.1", number]
        await asyncio.sleep(0)
        for number in range(50):
            watch.note_call(f"ipv4:10.0.0.1:{number}")
            watch.note_call(f"ipv4:10.0.0.1:{number}")  # another call over the same connection
        watch._look()
        watch._look()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        watched(body)
    *lines, last = caplog.messages
    assert len(lines) == 10
    assert all(line.startswith("a connection is refused: it ended before its handshake was done") for line in lines)
    assert last.startswith("40 more connections from somewhere were refused")


def test_who_has_called_and_left_is_not_refused_because_the_thread_that_found_it_was_slow(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(watch: Handshakes) -> None:
        doors.come("10.0.0.1", 1)
        doors.come("10.0.0.2", 1)
        seen = watch._in_time()  # by the stranger's thread, which stops here
        watch.note_connection()
        await asyncio.sleep(0)
        watch.note_call("ipv4:10.0.0.2:1")
        del doors.open["10.0.0.2", 1]
        watch._look()
        watch._came(seen)
        watch._look()
        assert caplog.messages == []
        del doors.open["10.0.0.1", 1]
        watch._look()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        watched(body)
    (line,) = caplog.messages
    assert line.startswith("a connection from 10.0.0.1:1 is refused")


def test_of_a_throttled_host_connections_end_before_their_handshake_and_of_another_none(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(watch: Handshakes) -> None:
        for number in range(20):
            doors.come("10.0.0.1", number)
            watch.note_connection()
            await asyncio.sleep(0)
            del doors.open["10.0.0.1", number]  # it showed no certificate
            watch._look()
            doors.now += 0.2  # and each is looked at
        assert doors.ended == []
        for number in range(100, 150):
            doors.come("10.0.0.1", number)
            doors.come("10.0.0.2", number)
        watch.note_connection()
        assert len(doors.ended) == 50 - AT_ONCE
        assert {host for host, _ in doors.ended} == {"10.0.0.1"}
        doors.now += PENALTY / 2
        for number in range(200, 250):
            doors.come("10.0.0.1", number)
        watch.note_connection()
        assert len(doors.ended) == 100 - AT_ONCE - AT_ONCE // 2
        await asyncio.sleep(0)
        watch._look()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        watched(body)
    words = "too many handshakes from its host have failed"
    assert len([line for line in caplog.messages if line.endswith(words) and line.startswith("a conn")]) == 10
    assert f"{90 - AT_ONCE - AT_ONCE // 2} more connections from 10.0.0.1 were refused: {words}" in caplog.messages


def test_parties_that_may_not_come_in_count_as_failures_of_their_host(doors: Doors) -> None:
    async def body(watch: Handshakes) -> None:
        for number in range(20):
            watch.count_failure(f"ipv4:10.0.0.1:{number}")  # its certificate was revoked
        for number in range(40):
            doors.come("10.0.0.1", number)
        watch.note_connection()
        assert len(doors.ended) == 40 - AT_ONCE

    watched(body)


def test_too_many_that_never_call_must_leave_those_of_a_crowded_host_at_once(doors: Doors) -> None:
    async def body(watch: Handshakes) -> None:
        first = [doors.come("10.0.0.9", number) for number in range(2)]
        crowd = [doors.come("10.0.0.1", 10 + number) for number in range(10)]
        watch.note_connection()
        watch.note_call("ipv4:10.0.0.1:19")
        await asyncio.sleep(0)
        watch._look()
        assert doors.ended == crowd[:3]  # eight may wait, and eleven did
        for number in range(3):
            doors.come(f"10.0.1.{number}", 1)
        watch._look()
        assert doors.ended == crowd[:6]
        others = [doors.come(f"10.0.2.{number}", 1) for number in range(4)]
        for _ in range(2):
            watch._look()
            ended = list(doors.ended)
            assert ended == crowd[:7]  # a quarter may be of one host; others stay, although there are too many
        doors.now += 6.0
        watch._look()
        assert doors.ended[len(ended) :][:2] == first
        assert not set(others) & set(doors.ended)
        assert ("10.0.0.1", 19) in doors.open

    watched(body, most=8)


def test_the_sockets_of_a_library_are_found_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place, socket.create_server(("127.0.0.1", 0)) as other:
        looking = AcceptedConnections(place.getsockname()[1])
        assert looking.look() == []
        pairs = [(socket.create_connection(one.getsockname()), one.accept()[0]) for one in (place, place, other)]
        (mine, theirs), (more, kept), _ = pairs
        found = {one.remote: one for one in looking.look()}
        assert set(found) == {mine.getsockname(), more.getsockname()}
        assert looking.look() == list(found.values())
        mine.sendall(b"hello")
        assert end(found[mine.getsockname()])
        with contextlib.suppress(ConnectionError):
            assert mine.recv(9) == b""
        assert theirs.recv(9) == b""  # to the library it looks as if the far end had left
        number = theirs.fileno()
        theirs.close()
        os.dup2(kept.fileno(), number)  # the library's descriptor is another's now
        assert not end(found[mine.getsockname()])
        os.close(number)
        kept.sendall(b"still here")
        assert more.recv(99) == b"still here"
        for pair in pairs:
            for one in pair:
                one.close()
        assert looking.look() == []
        monkeypatch.setattr(rpc, "_FILES", None)
        assert (has_files(), looking.look()) == (False, [])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127.0.0.2 without being told")
def test_a_connection_that_this_process_makes_from_another_address_with_the_same_port_is_not_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        port = place.getsockname()[1]
        made = socket.create_connection(elsewhere.getsockname(), source_address=("127.0.0.2", port))
        came = socket.create_connection(place.getsockname())
        there, other = place.accept()[0], elsewhere.accept()[0]
        for host, found in {
            "127.0.0.1": 1,
            "::ffff:127.0.0.1": 1,
            "127.0.0.2": 1,
            "0.0.0.0": 2,
            "localhost": 2,
        }.items():
            assert len(AcceptedConnections(port, host).look()) == found, host
        (one,) = AcceptedConnections(port, "127.0.0.1").look()
        assert one.remote == came.getsockname()
        for each in (made, came, there, other):
            each.close()


def test_a_crowd_that_says_nothing_is_turned_out_and_who_shows_a_certificate_is_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    most = 0

    class Narrow(PendingConnections):
        def enter(self, visitor: PendingConnection) -> None:
            nonlocal most
            super().enter(visitor)
            most = max(most, len(self._inside))

    monkeypatch.setattr(tcp_module, "PendingConnections", functools.partial(Narrow, most=4, quiet=0.001))

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
        monkeypatch.setattr(PendingConnections, "enter", lambda *_: asyncio.get_running_loop().call_soon(stop))
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


@pytest.mark.parametrize("kind", ["tcp", pytest.param("grpc", marks=pytest.mark.slow)])
def test_a_crowd_of_thousands_that_says_nothing_delays_nobody(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 idle connections, more than the system queues; a site comes behind all of them."""
    if kind == "grpc":  # its own limit of a handshake's time does not help
        monkeypatch.setattr("atoll.runtime.transport.rpc.PATIENCE", [("grpc.server_handshake_timeout_ms", 300_000)])
    count = 3000

    async def play() -> float:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        told: list[tuple[str, str, int]] = []
        way = transport(kind)
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
        if kind == "grpc":  # it takes all of them in, and lets those go that are too many
            looking = AcceptedConnections(int(port))
            while len(looking.look()) > MOST + 10:
                await asyncio.sleep(0.05)
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
        doorway = PendingConnections(most=8, quiet=60.0)
        loop = asyncio.get_running_loop()

        def visitor(host: str, spoke: bool = True) -> PendingConnection:
            made = PendingConnection(socket.socket(), host, 1)
            made.spoke = spoke
            made.sock.close()
            return made

        for _ in range(30):
            doorway.note_failure(visitor("10.0.0.1", spoke=False))  # a silent one is no failure
        assert not doorway._failed.throttled("10.0.0.1")
        for _ in range(20):
            doorway.note_failure(visitor("10.0.0.1"))
        assert doorway._failed.throttled("10.0.0.1")
        assert not doorway._failed.throttled("10.0.0.2")
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


def test_a_throttled_host_has_some_handshakes_a_second_and_all_once_its_failures_are_old() -> None:
    now = [0.0]
    failed = FailedHandshakes(lambda: now[0])
    for number in range(20):
        assert failed.admits("10.0.0.1")
        failed.note("10.0.0.1")
        failed.note(f"10.0.1.{number}")
    assert [failed.admits("10.0.0.1") for _ in range(40)] == [True] * AT_ONCE + [False] * (40 - AT_ONCE)
    now[0] += PENALTY
    assert sum(failed.admits("10.0.0.1") for _ in range(100)) == AT_ONCE
    assert all(failed.admits("10.0.1.1") for _ in range(100))
    now[0] += 10.0
    assert all(failed.admits("10.0.0.1") for _ in range(100))
    for number in range(5000):  # what is remembered is bounded
        failed.note(f"2001:db8::{number:x}")
        now[0] += 0.05
    assert len(failed._failures) + len(failed._allowed) < 1100


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127.0.0.2 without being told")
def test_over_a_network_a_host_that_fails_again_and_again_is_throttled_and_a_site_elsewhere_is_not(kind: str) -> None:
    words = "too many handshakes from its host have failed"

    async def stranger(port: int) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            with contextlib.suppress(OSError):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.read()
            writer.close()
            await writer.wait_closed()

    async def play() -> None:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        told: list[tuple[str, str, int]] = []
        way = transport(kind)
        listener = await way.listen("127.0.0.1:0", SERVER, came.put, on_refused=lambda *each: told.append(each))
        port = int(listener.address.rpartition(":")[2])
        while not any(why == words for _, why, _ in told):
            await asyncio.gather(*(stranger(port) for _ in range(40)))
        dialled = await way.dial(listener.address, SITE)
        assert (await came.get()).peer == peer_of(SITE.certificate)
        await dialled.close()
        await listener.close()
        assert {origin for origin, why, _ in told if why == words} == {"127.0.0.2"}
        assert "127.0.0.1" not in {origin for origin, *_ in told}

    asyncio.run(asyncio.wait_for(play(), 60))


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
