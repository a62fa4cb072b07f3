"""Whatever happens to connections, messages arrive once, in order, as they were; or the line is lost and says so."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import IdentityError
from atoll.engines.link import LinkClosed
from atoll.runtime.identity import peer_of
from atoll.runtime.line import Backoff, Channel, Line, LineLost, LineRefused, Settings, Switchboard, dial_line
from atoll.runtime.line.frames import LineHello, read_hello, write_hello
from atoll.runtime.transport import Pipe, PipeClosed, transport
from atoll.runtime.transport.memory import pair
from tests.support.line_toys import QUICK, SERVER, SITE, Life, hub, run

LIVES = st.lists(st.builds(Life, st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=8)
SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=8)  # bytes; blocks are of 256


def message(number: int, size: int) -> dict[str, Any]:
    return {"n": number, "data": np.full(size, number % 251, np.uint8)}


async def say(channel: Channel, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        await channel.send(message(number, size))


async def hear(channel: Channel, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        came = await channel.recv()
        assert came["n"] == number
        assert came["data"].tolist() == [number % 251] * size
        assert channel.inbox.held <= QUICK.window
        assert channel.outbox.held <= QUICK.window


@settings(max_examples=settings.default.max_examples // 2)
@given(lives=LIVES, out=st.lists(SIZES, min_size=1, max_size=3), back=SIZES)
def test_messages_arrive_once_and_in_order_wherever_connections_are_cut(
    lives: list[Life], out: list[list[int]], back: list[int]
) -> None:
    async def play() -> None:
        async with hub() as server:
            line = await server.line(lives=lives)
            talks = []
            for number, sizes in enumerate(out):
                here = line.open(f"job {number}")
                there = await server.channels.get()
                assert there.name == f"job {number}"
                talks += [say(here, sizes), hear(there, sizes), say(there, back), hear(here, back)]
            await asyncio.gather(*talks)
            assert server.channels.empty()
            assert not line.lost.is_set()

    run(play)


@settings(max_examples=40)
@given(lives=LIVES, sizes=SIZES)
def test_a_line_that_is_closed_ends_after_all_that_was_sent_wherever_connections_are_cut(
    lives: list[Life], sizes: list[int]
) -> None:
    async def hear_all(channel: Channel) -> int:
        heard = 0
        try:
            while True:
                assert (await channel.recv())["n"] == heard
                heard += 1
        except LinkClosed:
            return heard

    async def play() -> None:
        async with hub() as server:
            line = await server.line(lives=lives)
            here = line.open("job")
            there = await server.channels.get()
            hearing = asyncio.create_task(hear_all(there))
            await say(here, sizes)
            await line.close("done")
            assert await hearing == len(sizes)

    run(play)


@settings(max_examples=40)
@given(lives=LIVES, count=st.integers(1, 20))
def test_channels_that_both_ends_closed_are_forgotten_wherever_connections_are_cut(
    lives: list[Life], count: int
) -> None:
    async def converse(line: Line, channels: asyncio.Queue[Channel], number: int) -> None:
        here = line.open(str(number))
        await here.send(number)
        there = await channels.get()
        assert await there.recv() == int(there.name)
        there.close()
        with pytest.raises(LinkClosed, match="closed"):
            await here.recv()
        here.close()

    async def play() -> None:
        async with hub() as server:
            line = await server.line(lives=lives)
            await asyncio.gather(*(converse(line, server.channels, n) for n in range(count)))
            other = await server.lines.get()
            probe = line.open("probe")
            await probe.send(1)
            there = await server.channels.get()
            assert await there.recv() == 1
            await there.send(2)
            assert await probe.recv() == 2
            while len(line.table) > 1 or len(other.table) > 1:  # the last acknowledgements
                await asyncio.sleep(0)

    run(play)


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_line_over_a_network_goes_on_after_cuts(kind: str) -> None:
    sizes = [10, 200_000, 5, 3_000_000, 0, 70_000] * 3

    async def play() -> None:
        wide = dataclasses.replace(QUICK, block=1 << 16, window=1 << 20)
        async with hub(wide, transport(kind)) as server:
            line = await server.line(wide, [Life(3 * n, 50, n % 2 == 0) for n in range(6)])
            here = line.open("job")
            saying = asyncio.create_task(say(here, sizes))
            there = await server.channels.get()
            for number, size in enumerate(sizes):
                came = await there.recv()
                assert (came["n"], len(came["data"])) == (number, size)
            await saying
            assert line.stats().resumes >= 5

    run(play)


def test_a_server_that_began_anew_does_not_know_the_line() -> None:
    async def play() -> None:
        async with hub() as server:
            line = await server.line()
            here = line.open("job")
            assert server.listener is not None
            address = server.address
            await server.listener.close()
            server.board = Switchboard(server.lines.put_nowait, QUICK)  # as after kill -9: nothing is left
            await server.listen(address)
            with pytest.raises(LineLost, match="does not know the line to resume: it restarted"):
                await here.recv()
            again = await server.line()
            await again.open("job").send(1)
            assert not again.lost.is_set()

    run(play)


def test_while_a_process_answers_a_second_one_with_its_kit_is_refused() -> None:
    async def play() -> None:
        async with hub() as server:
            line = await server.line()
            line.open("job")
            old = await server.channels.get()
            with pytest.raises(LineRefused, match="another process uses this kit"):
                await server.line()
            assert [other.other for other in server.board.lines] == [line.id]
            assert [refused for _, _, refused in server.seconds] == [True]
            await old.send(1)
            assert not line.lost.is_set()
            await line.detach()  # it cannot be asked, and whoever comes now has its place
            again = await server.line()
            assert [other.other for other in server.board.lines] == [again.id]

    run(play)


def test_where_takeovers_are_allowed_a_site_that_began_anew_ends_its_old_line() -> None:
    async def play() -> None:
        async with hub(takeover=True) as server:
            line = await server.line()
            line.open("job")
            old = await server.channels.get()
            again = await server.line()
            assert [refused for _, _, refused in server.seconds] == [False]
            with pytest.raises(LineLost, match="site 'north' of 'North' restarted"):
                await old.recv()
            assert (await server.lines.get()).lost.is_set()
            assert [other.other for other in server.board.lines] == [again.id]
            with pytest.raises(LineLost, match="another process uses this kit"):
                await line.open("late").recv()
            assert isinstance(line.error, LineRefused)
            assert isinstance(line.error.error, IdentityError)
            assert "a kit of its own" in str(line.error)
            assert [other.other for other in server.board.lines] == [again.id]  # it has not come back


def test_a_dead_predecessor_is_replaced_at_once_even_where_nobody_noticed_its_death() -> None:
    """After kill -9 behind a firewall the old connection stays half open: nothing closes it."""

    async def play() -> None:
        async with hub(Settings(heartbeat=None, patience=None, answer=0.1)) as server:
            dead = await server.dial()()
            await write_hello(dead, LineHello(b"d" * 16))
            await read_hello(dead)
            begun = asyncio.get_running_loop().time()
            again = await server.line()
            await again.open("job").send(1)
            assert asyncio.get_running_loop().time() - begun < 1.0
            assert [other.other for other in server.board.lines] == [again.id]

    run(play)


@pytest.mark.parametrize("kind", ["memory", "tcp", "grpc"])
def test_a_dialler_that_is_refused_on_its_way_back_gives_up_and_says_why(kind: str) -> None:
    """Its certificate is revoked while it is connected, and the connection is cut."""

    async def play() -> None:
        way = transport(kind)
        gone: set[int] = set()
        came: asyncio.Queue[Channel] = asyncio.Queue()
        board = Switchboard(lambda line: setattr(line, "on_open", came.put_nowait), QUICK)
        listener = await way.listen("127.0.0.1:0", SERVER, board.accept, gone.__contains__)
        dial = partial(way.dial, listener.address, SITE)
        line = await dial_line(dial, settings=QUICK, backoff=Backoff(first=1e-4, longest=1e-3))
        line.open("job")
        await came.get()
        gone.add(peer_of(SITE.certificate).serial)
        await board.lines[0].detach()
        await line.lost.wait()
        assert isinstance(line.error, LineRefused)
        assert re.search(
            r"site 'north' of 'North' is refused: its certificate \(serial \w+\) was revoked", str(line.error)
        )
        assert line.error.error.remedy.endswith("atoll provision PROJECT --renew north")
        await listener.close()

    run(play)


def test_a_dialler_that_refuses_what_it_finds_tries_again() -> None:
    """The fault is the other end's, where somebody may repair it; what answers may also be somebody else for a moment."""

    async def play() -> None:
        async with hub() as server:
            dial, wrong = server.dial(), iter([False, True, True])

            async def sometimes() -> Pipe:
                if next(wrong, False):
                    raise IdentityError("a stranger", where="certificate", remedy="look")
                return await dial()

            line = await dial_line(sometimes, settings=QUICK, backoff=Backoff(first=1e-4, longest=1e-3))
            here = line.open("job")
            there = await server.channels.get()
            await server.board.lines[0].detach()
            await here.send(1)
            assert await there.recv() == 1
            assert line.stats().resumes == 1

    run(play)

    run(play)


def test_many_consoles_of_one_admin_live_side_by_side() -> None:
    from tests.support.certificates import authority

    admin = authority().issue("admin", "ada")

    async def play() -> None:
        async with hub() as server:
            lines = [await server.line(credentials=admin) for _ in range(3)]
            assert len(server.board.lines) == 3
            assert not any(line.lost.is_set() for line in lines)

    run(play)


def test_a_party_that_stays_away_loses_its_line(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        short = dataclasses.replace(QUICK, patience=0.05)
        async with hub(short) as server:
            line = await server.line(short)
            line.open("job")
            there = await server.channels.get()
            assert server.listener is not None
            await server.listener.close()
            with pytest.raises(LineLost, match=r"was not connected for 0\.05 s"):
                await there.recv()
            with pytest.raises(LineLost, match=r"server 'hub' of 'Hub' was not connected for 0\.05 s"):
                await line.open("late").recv()
            assert server.board.lines == []

    run(play)
    assert "server 'hub' of 'Hub' cannot be reached" in caplog.text


def test_nobody_there_at_first_is_an_error_after_the_patience() -> None:
    async def play() -> None:
        async with hub() as server:
            assert server.listener is not None
            await server.listener.close()
            with pytest.raises(ConnectionRefusedError, match="nothing listens"):
                await server.line(dataclasses.replace(QUICK, patience=0.02))

    run(play)


def test_a_refusal_is_told_at_once() -> None:
    from atoll.core.errors import IdentityError
    from tests.support.certificates import authority

    async def play() -> None:
        async with hub() as server:
            with pytest.raises(IdentityError, match="belongs to project 'trial'"):
                await server.line(credentials=authority().issue("site", "x", project="trial"))

    run(play)


def test_a_half_open_connection_is_noticed_and_replaced() -> None:
    class Deaf:
        """Takes everything and says nothing, as when a cable is pulled."""

        def __init__(self, pipe: Any) -> None:
            self.peer, self.heard, self.pipe = pipe.peer, pipe.heard, pipe
            self.greeted = False

        async def send(self, *parts: Any) -> None:
            if not self.greeted:
                await self.pipe.send(*parts)

        async def recv(self) -> Any:
            if self.greeted:
                await asyncio.Event().wait()
            self.greeted = True
            return await self.pipe.recv()

        async def close(self) -> None:
            await self.pipe.close()

    async def play() -> None:
        beating = dataclasses.replace(QUICK, heartbeat=0.01, silence=0.05)
        async with hub(beating) as server:
            dial, first = server.dial(), True

            async def deaf_at_first() -> Any:
                nonlocal first
                pipe = await dial()
                if first:
                    first = False
                    return Deaf(pipe)
                return pipe

            server.dial = lambda credentials=SITE: deaf_at_first  # type: ignore[method-assign,assignment]
            line = await server.line(beating)
            here = line.open("job")
            await here.send("are you there")
            there = await server.channels.get()
            assert await there.recv() == "are you there"
            assert line.stats().resumes >= 1

    run(play)


def test_heartbeats_measure_the_round_trip() -> None:
    async def play() -> None:
        beating = dataclasses.replace(QUICK, heartbeat=0.005)
        async with hub(beating) as server:
            line = await server.line(beating)
            other = await server.lines.get()
            while line.stats().round_trip is None or other.stats().round_trip is None:
                await asyncio.sleep(0)
            for end in (line, other):
                stats = end.stats()
                assert stats.round_trip is not None
                assert stats.skew is not None
                assert 0 < stats.round_trip < 5
                assert abs(stats.skew) < 5
                assert stats.sent_blocks > 1
                assert stats.received_bytes >= 60  # a question and an answer
                assert stats.heard is not None

    run(play)


def test_a_connection_that_is_ended_before_its_first_step_is_closed() -> None:
    async def play() -> None:
        mine, theirs = pair(peer_of(SITE.certificate), peer_of(SERVER.certificate))
        line = Line(mine.peer, dialled=True, settings=QUICK)
        running = line.attach(mine, LineHello(b"x" * 16))
        line.lose(LineLost("given up"))  # nothing of it has run yet
        assert await running == "the connection was ended here"
        assert not line.connected
        with pytest.raises(PipeClosed, match="closed"):
            await theirs.recv()

    run(play)


def test_a_line_that_is_lost_while_it_is_greeted_is_lost_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the end that dialled is connected to nobody, and waits for ever."""
    greeted, lost = asyncio.Event(), asyncio.Event()

    async def slowly(pipe: Pipe, hello: LineHello) -> None:
        await write_hello(pipe, hello)
        greeted.set()
        await lost.wait()

    async def play() -> None:
        async with hub() as server:
            line = await server.line(lives=[Life(2, 9, True)])  # HELLO and OPEN
            here = line.open("job")
            other = await server.lines.get()
            await server.channels.get()
            monkeypatch.setattr("atoll.runtime.line.endpoints.write_hello", slowly)
            assert other.loop is not None
            other.loop.cancel()
            await greeted.wait()
            other.lose(LineLost("its patience is over"))
            lost.set()
            with pytest.raises(LineLost, match="does not know the line to resume"):
                await here.recv()

    run(play)
