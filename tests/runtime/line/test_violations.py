"""Frames that break the rules end their connection with a line in the log; nothing else is touched."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.runtime.line import LineLost, Stats
from atoll.runtime.line.frames import HEADER, VERSION, Kind, LineHello, Violation, read_hello, write_hello
from atoll.runtime.line.line import Pulse
from atoll.runtime.transport import Pipe, PipeClosed
from atoll.runtime.transport.base import BLOCK
from tests.support.line_toys import QUICK, Hub, hub, run

ID = bytes(range(16))


def frame(kind: int, channel: int = 1, seq: int = 0, content: bytes = b"", flags: int = 0) -> bytes:
    return HEADER.pack(kind, flags, channel, seq) + content


OPEN = frame(Kind.OPEN, content=b"job")
SAY = M.encode("x")


@asynccontextmanager
async def greeted(server: Hub) -> AsyncIterator[Pipe]:
    """A connection of somebody who writes frames by hand."""
    pipe = await server.dial()()
    await write_hello(pipe, LineHello(ID))
    await read_hello(pipe)
    yield pipe
    await pipe.close()


async def until_closed(pipe: Pipe) -> None:
    try:
        while True:
            await pipe.recv()
    except PipeClosed:
        return


async def still_serves(server: Hub) -> None:
    line = await server.line()
    await line.open("honest").send("hello")
    while (there := await server.channels.get()).name != "honest":
        pass  # what others opened before they were cut off
    assert await there.recv() == "hello"
    await line.close()


WRONG = {
    "replayed": (
        [OPEN, frame(Kind.DATA, 1, 1, SAY, 1), frame(Kind.DATA, 1, 1, SAY, 1)],
        "frame 1 of channel 1 came before",
    ),
    "replayed opening": ([OPEN, OPEN], "channel 1 is opened, but 3 is due"),
    "gap": ([OPEN, frame(Kind.DATA, 1, 2, SAY, 1)], "frame 2 of channel 1 follows a gap"),
    "truncated": ([OPEN[:9]], "shorter than a header"),
    "oversized": ([OPEN, frame(Kind.DATA, 1, 1, bytes(BLOCK + 1))], "bytes in one frame"),
    "more than the window": (
        [OPEN, *(frame(Kind.DATA, 1, 1 + n, bytes(1000)) for n in range(12))],
        "more than its window",
    ),
    "unknown kind": ([frame(99)], "unknown kind 99"),
    "unknown flags": ([OPEN, frame(Kind.DATA, 1, 1, SAY, 64)], "unknown flags 64"),
    "flags where none belong": ([frame(Kind.OPEN, flags=1)], "unknown flags 1 on OPEN"),
    "dropped with content": ([OPEN, frame(Kind.DATA, 1, 1, SAY, 3)], "dropped by an empty last block"),
    "never opened": ([frame(Kind.DATA, 1, 0, SAY, 1)], "DATA for channel 1, which is not open"),
    "acknowledged, never opened": ([frame(Kind.ACK, 2, 1)], "ACK for channel 2, which is not open"),
    "acknowledged, never written": ([OPEN, frame(Kind.ACK, 1, 5)], "frame 5 of channel 1 is acknowledged"),
    "opened out of turn": ([frame(Kind.OPEN, 5, content=b"job")], "channel 5 is opened, but 1 is due"),
    "opened by the wrong end": ([frame(Kind.OPEN, 2, content=b"job")], "channel 2 is opened, but 1 is due"),
    "opened late": ([frame(Kind.OPEN, 1, 7, b"job")], "frame 7 of channel 1 follows a gap"),
    "name that is no text": ([frame(Kind.OPEN, content=b"\xff\xfe")], "not UTF-8"),
    "name with control characters": ([frame(Kind.OPEN, content=b"a\nERROR forged")], "control characters"),
    "name without end": ([frame(Kind.OPEN, content=b"a" * 5000)], "a text of 5000 bytes"),
    "after the end": ([OPEN, frame(Kind.CLOSE, 1, 1), frame(Kind.DATA, 1, 2, SAY, 1)], "follows its end"),
    "asked about, never opened": ([frame(Kind.ASK, 3)], "ASK for channel 3, which is not open"),
    "asked with content": ([OPEN, frame(Kind.ASK, content=b"?")], "ASK with 1 bytes"),
    "second greeting": ([frame(Kind.HELLO)], "HELLO in the middle"),
    "answer without question": ([frame(Kind.PONG, content=bytes(16))], "PONG without a PING"),
    "question without clocks": ([frame(Kind.PING, content=b"now")], "PING with 3 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_frames_that_break_the_rules(name: str, caplog: pytest.LogCaptureFixture) -> None:
    blocks, words = WRONG[name]

    async def play() -> None:
        async with hub() as server:
            async with greeted(server) as pipe:
                for block in blocks:
                    await pipe.send(block)
                await until_closed(pipe)
            await still_serves(server)

    run(play)
    assert "broke the rules" in caplog.text
    assert words in caplog.text


def test_too_many_channels(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with hub(dataclasses.replace(QUICK, channels=5)) as server:
            async with greeted(server) as pipe:
                for number in range(1, 13, 2):
                    await pipe.send(frame(Kind.OPEN, number, content=b"job"))
                await until_closed(pipe)
            await still_serves(server)

    run(play)
    assert "more than 5 channels are open" in caplog.text


def hello(**changes: object) -> bytes:
    tree = {
        "version": VERSION,
        "line": ID,
        "other": b"",
        "seen": 0,
        "channels": np.zeros((0, 3), np.uint64),
        "refused": "",
    }
    return frame(Kind.HELLO, 0) + M.encode({**tree, **changes})


GREETINGS = {
    "another version": (hello(version=VERSION + 1), f"speaks version {VERSION + 1} of the line, this end {VERSION}"),
    "no version": (hello(version=None), "speaks version None"),
    "no id": (hello(line=b""), "HELLO lacks a field"),
    "a table of another form": (hello(channels=np.zeros((3, 2), np.uint64)), "HELLO lacks a field"),
    "consumed more than received": (hello(channels=np.array([[1, 2, 3]], np.uint64)), "HELLO lacks a field"),
    "saw what was never opened": (hello(seen=8), "the other end has seen channel 8, which was never opened"),
    "a line of long ago": (hello(other=ID), "this end does not know the line to resume"),
    "another frame": (OPEN, "the first frame is OPEN"),
    "no message": (frame(Kind.HELLO, 0, 0, b"hello"), "HELLO is damaged"),
    "an endless message": (frame(Kind.HELLO, 0) + M.encode({"w": np.zeros(100_000)}), "HELLO is damaged"),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_greetings_that_are_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    block, words = GREETINGS[name]

    async def play() -> None:
        async with hub() as server:
            pipe = await server.dial()()
            await pipe.send(block)
            await until_closed(pipe)
            await still_serves(server)

    run(play)
    assert "the connection is refused" in caplog.text
    assert words in caplog.text


def test_a_dialler_of_another_version_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with hub() as server:
            real = LineHello.__init__

            def older(self: LineHello, line: bytes, *args: object, **more: object) -> None:
                real(self, line, *args, **more)  # type: ignore[arg-type]
                if not self.refused:
                    object.__setattr__(self, "version", 0)

            monkeypatch.setattr(LineHello, "__init__", older)
            with pytest.raises(LineLost, match=f"speaks version 0 of the line, this end {VERSION}"):
                await server.line()

    run(play)


def test_one_who_says_nothing_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with hub(dataclasses.replace(QUICK, greeting=0.02)) as server:
            await until_closed(await server.dial()())

    run(play)
    assert "no HELLO within 0.02 s" in caplog.text


def _frames() -> st.SearchStrategy[bytes]:
    made = st.builds(
        frame, st.integers(0, 9), st.integers(0, 6), st.integers(0, 4), st.binary(max_size=80), st.integers(0, 4)
    )
    return st.one_of(st.binary(max_size=60), made, st.just(OPEN), st.just(frame(Kind.DATA, 1, 1, SAY, 1)))


@settings(max_examples=settings.default.max_examples)
@given(blocks=st.lists(_frames(), max_size=12), first=st.booleans())
def test_no_frames_whatever_bring_a_server_down(blocks: list[bytes], first: bool) -> None:
    async def play() -> None:
        async with hub() as server:
            pipe = await server.dial()()
            try:
                if first:
                    await write_hello(pipe, LineHello(ID))
                for block in blocks:
                    await pipe.send(block)
            except PipeClosed:
                pass
            await pipe.close()  # while its line answers, a second process of its kit is refused
            await still_serves(server)

    class Faults(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                raise AssertionError(record.getMessage())

    handler = Faults()
    logging.getLogger("atoll.runtime").addHandler(handler)
    try:
        run(play)
    finally:
        logging.getLogger("atoll.runtime").removeHandler(handler)


def test_after_a_violation_the_line_goes_on_where_it_was() -> None:
    async def play() -> None:
        async with hub() as server:
            line = await server.line()
            here = line.open("job")
            there = await server.channels.get()
            await here.send(1)
            assert line.loop is not None
            await line.loop.pipe.send(frame(99))
            await here.send(2)
            assert [await there.recv(), await there.recv()] == [1, 2]
            while not line.stats().resumes:
                await asyncio.sleep(0)

    run(play)


def test_clock_skew_is_measured_to_half_a_round_trip() -> None:
    ticks = iter([10.0, 10.4])  # the question leaves, the answer comes
    stats = Stats()
    near = Pulse(stats, clock=lambda: next(ticks), wall=lambda: 1000.0)
    far = Pulse(Stats(), wall=lambda: 1090.2)  # 90 s ahead; the answer leaves 0.2 s after the question
    near.ask()
    question = near.due()
    assert question is not None
    far.take_question(question)
    answer = far.due()
    assert answer is not None
    near.take_answer(answer)
    assert stats.round_trip == pytest.approx(0.4)
    assert stats.skew == pytest.approx(90.0)
    with pytest.raises(Violation, match="PONG without a PING"):
        near.take_answer(answer)
    assert struct.calcsize("<dd") == len(question.content)
