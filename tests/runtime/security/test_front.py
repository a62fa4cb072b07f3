"""The server's front on a real port, and everybody who means it harm: each is refused with a line in the log, and the others are served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import JobError, PolicyError
from atoll.engines.link import LinkClosed
from atoll.runtime.identity import peer_of
from atoll.runtime.line import Channel, Line
from atoll.runtime.line.frames import LineHello, read_hello, write_hello
from atoll.runtime.store.records import Submission
from atoll.runtime.transport import Pipe, PipeClosed, transport
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.waiting import until

Log = pytest.LogCaptureFixture
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"\x16\x03\x01\x02\x00\x01" + bytes(600), b""]


@pytest.fixture(autouse=True)
def logged(caplog: Log) -> None:
    caplog.set_level(logging.INFO, "atoll.runtime")


async def shout(address: str, words: bytes) -> None:
    """Connect, say something that is no handshake, and listen until the other end hangs up."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(OSError):
        writer.write(words)
        writer.write_eof()
        await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def bare(address: str, ca: bytes) -> None:
    """Come without a certificate."""
    import socket

    context = ssl.create_default_context(cadata=ca.decode())
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        wrapped.recv(1)


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
def test_strangers_are_refused_and_the_others_are_served(
    carrier: str, kit: Kits, tmp_path: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"atoll.runtime.transport.{'rpc' if carrier == 'grpc' else 'tcp'}"
    wrong = {"foreign/north": 1, "expired/north": 1, "early/anna": 1, "hearts/north": 1, "ours/server": 1}

    async def body() -> None:
        async with besieged(kit, tmp_path, carrier) as siege:
            good = siege.kit("north")
            monkeypatch.setattr(f"{module}.own", lambda credentials: peer_of(credentials.certificate))
            for path in wrong:
                credentials = kit(path).credentials()
                stolen = type(credentials)(good.bytes_of("ca.pem"), credentials.certificate, credentials.key)
                with pytest.raises(OSError, match=r"\w"):
                    await transport(carrier).dial(siege.address, stolen, good.server.name)
            for words in GARBAGE:
                await shout(siege.address, words)
            await asyncio.to_thread(bare, siege.address, good.bytes_of("ca.pem"))
            async with good_site(good, siege.address, tmp_path / "north"):
                await until(lambda: "north" in siege.server._dispatcher.sessions)
                assert await siege.serves() == []
            await until(
                lambda: sum("a connection" in line for line in warnings(caplog)) >= len(wrong) + len(GARBAGE) + 1
            )

    played(body)
    assert not errors(caplog)
    said = warnings(caplog)
    assert all("is refused" in line for line in said if "a connection" in line)
    assert any("belongs to project 'hearts', not 'lungs'" in line for line in said)


def warnings(caplog: Log) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def errors(caplog: Log) -> list[str]:
    """Lines that say that something here is broken."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# ---------------------------------------------------------------------- what each role may


@pytest.mark.both_carriers
def test_each_role_has_its_own_channels_and_no_other(kit: Kits, tmp_path: Path) -> None:
    async def closed(siege: Besieged, who: str, name: str, frame: Any) -> str:
        line = await siege.line(who)
        channel = line.open(name)
        with contextlib.suppress(LinkClosed):
            await channel.send(frame)
        with pytest.raises(LinkClosed, match=r"\w") as found:
            await channel.recv()
        await line.close(within=0.2)
        return str(found.value)

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            hello = {"op": "hello", "holding": [], "kept": []}
            for name in ("request", "job/1/1", "", "server"):
                assert "a site opens one channel" in await closed(siege, "north", name, {"op": "submit"})
            for who in ("anna", "vera"):
                for name in ("control", "job/1/1"):
                    assert "no such channel" in await closed(siege, who, name, hello)
            assert siege.server._dispatcher.sessions == {}
            for op in ("submit", "abort", "bundle"):
                told = await siege.ask("vera", {"op": op, "job": "1", "bundle": b"", "token": "t"})
                assert told["error"]["kind"] == PolicyError.__name__
                assert f"auditor 'vera' of 'ministry' may not ask for '{op}'" in told["error"]["what"]
            assert await siege.serves() == []

    played(body)


@pytest.mark.both_carriers
def test_a_sites_people_have_a_line_of_their_own_and_see_the_sites_jobs(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            daemon = await siege.line("north")
            held = daemon.open("control")
            await held.send({"op": "hello", "holding": [], "kept": []})
            line = await siege.line("north", asks=True)

            async def ask(**frame: Any) -> Any:
                channel = line.open("request")
                await channel.send(frame)
                return await channel.recv()

            for op in ("resume", "delete", "bundle", "logs", "result", "events", "sites"):
                told = await ask(op=op, job="1", token="t")
                assert f"may not ask for '{op}'" in told["error"]["what"]
            submission = Submission(name="others", submitter="anna", org="uni", spec={}, token="t")
            record = siege.server._store.submit(submission, now=1.0, who="anna")
            assert (await ask(op="jobs"))["jobs"] == []
            told = await ask(op="jobs", job=record.id)
            assert "takes no part in this job" in told["error"]["what"]
            told = await ask(op="abort", job=record.id)
            assert "may ask for 'abort' of what it has submitted itself alone" in told["error"]["what"]
            beside = await siege.line("north", asks=True)  # two people of a site, or two predictions
            assert not daemon.lost.is_set()  # the daemon keeps its place
            assert not line.lost.is_set()
            await beside.close(within=0.2)
            control = line.open("control")
            await control.send({"op": "hello", "holding": [], "kept": []})
            with pytest.raises(LinkClosed, match="no such channel"):
                await control.recv()
            await line.close(within=0.2)
            await daemon.close(within=0.2)

    played(body)


def test_an_analyst_asks_sql_and_sees_its_own_jobs_alone(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            line = await siege.line("ada")

            async def ask(**frame: Any) -> Any:
                channel = line.open("request")
                await channel.send(frame)
                return await channel.recv()

            for op in ("resume", "delete", "bundle", "events", "sites"):
                told = await ask(op=op, job="1", token="t")
                assert f"may not ask for '{op}'" in told["error"]["what"]
            store = siege.server._store
            theirs, mine = (store.submit(Submission(name=name, submitter=name, org="uni", spec={}, token="t"), now=1.0, who=name).id for name in ("anna", "ada"))  # fmt: skip
            assert [one["job"] for one in (await ask(op="jobs"))["jobs"]] == [mine]
            assert [one["job"] for one in (await ask(op="jobs", submitter="anna"))["jobs"]] == [mine]
            assert "takes no part in this job" in (await ask(op="jobs", job=theirs))["error"]["what"]
            for op in ("logs", "result", "abort"):
                assert f"may ask for '{op}' of what it has submitted itself alone" in (await ask(op=op, job=theirs))["error"]["what"]  # fmt: skip
            await line.close(within=0.2)

    played(body)


BAD_REQUESTS: list[Any] = [
    None, 5, [], "submit", {}, {"op": None}, {"op": "exec"}, {"op": "_note"}, {"op": "serve"}, {"op": ["jobs"]},
    {"op": "submit"}, {"op": "submit", "bundle": 10**12, "token": "t"}, {"op": "submit", "bundle": b"PK", "token": 5},
    {"op": "submit", "bundle": b"", "token": "t" * 5000}, {"op": "submit", "bundle": "words", "token": "t"},
    {"op": "jobs", "job": "../../etc"}, {"op": "jobs", "job": ["x"]}, {"op": "jobs", "limit": "all of them"},
    {"op": "logs"}, {"op": "logs", "job": {"a": 1}}, {"op": "logs", "job": "1", "after": math.nan},
    {"op": "events", "after": "first"}, {"op": "events", "job": [1]}, {"op": "result", "job": "../.."},
    {"op": "abort", "job": None}, {"op": "bundle", "job": "'; DROP TABLE jobs; --"},
]  # fmt: skip


@pytest.mark.both_carriers
def test_requests_that_make_no_sense(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            for frame in BAD_REQUESTS:
                told = await siege.ask("anna", frame)
                assert told["error"]["what"], frame
            assert await siege.serves() == []
            assert set(siege.server._news._waiting) <= {""}  # nothing is kept of jobs that are not there

    played(body)


@pytest.mark.both_carriers
def test_requests_that_are_too_long_or_too_many(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            for who, size in (("vera", 1 << 17), ("anna", 130 << 20)):
                with pytest.raises(LinkClosed, match=r"a message was refused: .* bytes"):
                    await siege.ask(who, {"op": "jobs", "job": bytes(size)})
            line = await siege.line("vera")
            asking = [line.open("request") for _ in range(200)]
            ends = [asyncio.create_task(end_of(channel)) for channel in asking]
            await until(lambda: sum(task.done() for task in ends) >= 130)
            assert {task.result() for task in ends if task.done()} == {"more than 64 requests at once"}
            await line.close(within=0.2)
            await asyncio.gather(*ends)
            async with siege.admin("vera") as admin:  # one after another there may be as many as one likes
                for _ in range(150):
                    await admin.jobs()

    played(body)
    assert "makes more than 64 requests at once" in caplog.text


async def end_of(channel: Channel) -> str:
    try:
        await channel.recv()
    except LinkClosed as error:
        return str(error)
    return "an answer"


@pytest.mark.both_carriers
def test_one_person_cannot_hold_lines_without_end(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.runtime.line.endpoints._MOST", 5)

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            for _ in range(9):
                pipe = await siege.pipe("vera")
                await write_hello(pipe, LineHello(np.random.default_rng(_).bytes(16)))
                await read_hello(pipe)
                await pipe.close()
            assert await siege.serves() == []
            pipes = [await siege.pipe("vera") for _ in range(7)]
            for number, pipe in enumerate(pipes):
                await write_hello(pipe, LineHello(np.random.default_rng(100 + number).bytes(16)))
            refused = [words for pipe in pipes if (words := (await read_hello(pipe)).refused)]
            assert len(refused) == 2  # whichever were heard last
            assert all("has 5 lines, the most for one party" in words for words in refused)
            assert await siege.serves() == []
            for pipe in pipes:
                await pipe.close()

    played(body)


# ---------------------------------------------------------------------- a site that says what it likes

NO_HELLO: list[Any] = [
    None, 7, "hello", [], {}, {"op": "log"}, {"op": "hello"}, {"op": "hello", "holding": "all"},
    {"op": "hello", "holding": [1]}, {"op": "hello", "holding": [], "kept": 5}, {"op": "hello", "holding": [], "kept": [None]},
    {"op": "hello", "holding": [], "kept": "x"}, {"op": "hello", "holding": [], "more": np.zeros(5 << 20)},
]  # fmt: skip

NO_FRAMES: list[Any] = [
    None, 5, "log", [], {}, {"op": None}, {"op": 5}, {"op": "offered"},
    {"op": "offered", "job": "1", "why": 5, "ticket": 1}, {"op": "offered", "job": "1", "why": "", "ticket": math.nan},
    {"op": "offered", "job": "1", "why": "", "ticket": True}, {"op": "offered", "job": "1", "why": "", "ticket": 10**40},
    {"op": "offered", "job": ["1"], "why": "", "ticket": 1}, {"op": "log", "job": "1", "lines": 5},
    {"op": "log", "job": "1", "lines": [1, 2]}, {"op": "log", "job": 5, "lines": []}, {"op": "deployed"},
    {"op": "deployed", "job": "1", "attempt": "1"}, {"op": "exited", "job": "1"}, {"op": "exited", "job": None, "attempt": 1},
    {"op": "log", "job": "1" * 5000, "lines": []},
]  # fmt: skip

NO_MATTER: list[Any] = [
    {"op": "unknown"}, {"op": "offered", "job": "no", "why": "", "ticket": 9, "ok": True},
    {"op": "log", "job": "no", "lines": ["x"]}, {"op": "deployed", "job": "no", "attempt": 1},
    {"op": "exited", "job": "no", "attempt": 1, "code": [], "error": 5},
]  # fmt: skip
"""Of jobs that are not there: nobody asked, and nothing comes of it."""


async def control(siege: Besieged, first: Any, *frames: Any) -> tuple[Line, Channel]:
    line = await siege.line("south")
    channel = line.open("control")
    with contextlib.suppress(LinkClosed):
        for frame in (first, *frames):
            await channel.send(frame)
    return line, channel


@pytest.mark.both_carriers
def test_frames_about_jobs_that_make_no_sense(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    hello = {"op": "hello", "holding": [], "kept": ["no", "../..", "x" * 300]}

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, good_site(siege.kit("north"), siege.address, tmp_path / "north"):
            cases = [[first] for first in NO_HELLO] + [[hello, frame] for frame in NO_FRAMES]
            for number, (first, *rest) in enumerate(cases, 1):
                line, channel = await control(siege, first, *rest)
                with pytest.raises(LinkClosed, match=r"\w"):
                    await channel.recv()
                await until(lambda number=number: sum("refused" in line for line in warnings(caplog)) >= number)
                await line.close(within=0.1)
            line, _ = await control(siege, hello, *NO_MATTER)
            await until(lambda: "south" in siege.server._dispatcher.sessions)
            assert sorted(siege.server._dispatcher.sessions) == ["north", "south"]
            assert await siege.serves() == []
            await line.close(within=0.1)

    played(body)
    assert not errors(caplog)


@pytest.mark.both_carriers
def test_a_flood_of_frames_and_lines_keeps_nobody_from_being_served(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            line, channel = await control(siege, {"op": "hello", "holding": []})
            flooding = asyncio.create_task(flood(channel))
            longest = 0.0
            before = peak()
            for _ in range(40):
                begin = time.monotonic()
                assert await admin.jobs() == []
                longest = max(longest, time.monotonic() - begin)
            assert longest < 2.0
            assert peak() - before < 200
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            await line.close(within=0.1)

    played(body)
    assert not errors(caplog)


async def flood(channel: Channel) -> None:
    lines = ["x" * 1000] * 2000
    while True:
        for _ in range(200):
            await channel.send({"op": "log", "job": "no", "lines": ["y"]})
        await channel.send({"op": "log", "job": "no", "lines": lines})
        await channel.send({"op": "deployed", "job": "no", "attempt": 5})


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.both_carriers
def test_a_flood_of_channels_ends_its_connection_only(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, good_site(siege.kit("north"), siege.address, tmp_path / "north"):
            from atoll.runtime.line.frames import HEADER, Kind

            pipe = await siege.pipe("south")
            await write_hello(pipe, LineHello(bytes(16)))
            await read_hello(pipe)
            with contextlib.suppress(PipeClosed):
                for number in range(1, 6000, 2):
                    await pipe.send(HEADER.pack(Kind.OPEN, 0, number, 0) + b"more")
            await gone(pipe)
            assert await siege.serves() == []
            assert "north" in siege.server._dispatcher.sessions

    played(body)
    assert "more than 1024 channels are open" in caplog.text
    assert not errors(caplog)


async def gone(pipe: Pipe) -> None:
    with contextlib.suppress(PipeClosed):
        while True:
            await pipe.recv()


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
def test_who_connects_and_says_nothing_is_not_waited_for(
    carrier: str, kit: Kits, tmp_path: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them, at the three places where one can stop talking: before the handshake, after it, and after the greeting."""
    import atoll.runtime.server.server as module
    from atoll.runtime.line import Settings

    monkeypatch.setattr(module, "Settings", lambda **kept: Settings(**kept, greeting=0.3))

    async def body() -> None:
        async with besieged(kit, tmp_path, carrier) as siege:
            host, _, port = siege.address.rpartition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
            pipes = [await siege.pipe("south") for _ in range(20)]
            dumb = await siege.pipe("vera")
            await write_hello(dumb, LineHello(bytes(range(16))))
            async with good_site(siege.kit("north"), siege.address, tmp_path / "north"):
                assert await siege.serves() == []
                await asyncio.gather(*map(gone, pipes))
                assert await siege.serves() == []
            for _, writer in silent:
                writer.close()
            await dumb.close()

    played(body)
    assert caplog.text.count("no HELLO within 0.3 s") == 20


def tapped(siege: Besieged, change: Callable[[int, bytes], bytes]) -> Any:
    """A machine in the middle, which passes on what a party sends as ``change`` makes it, given how many bytes were before."""
    seen = bytearray()
    host, _, port = siege.address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far, to = await asyncio.open_connection(host, int(port))

        async def up() -> None:
            count = 0
            while chunk := await reader.read(1 << 14):
                seen.extend(chunk)
                to.write(change(count, chunk))
                count += len(chunk)
            to.close()

        async def down() -> None:
            while chunk := await far.read(1 << 14):
                writer.write(chunk)
            writer.close()

        try:
            await asyncio.gather(up(), down(), return_exceptions=True)
        finally:  # an end that was reset has closed nothing
            to.close()
            writer.close()

    return seen, serve


@pytest.mark.both_carriers
def test_what_was_recorded_on_the_wire_cannot_be_played_again(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            seen, serve = tapped(siege, lambda count, chunk: chunk)
            middle = await asyncio.start_server(serve, "127.0.0.1", 0)
            real, siege.address = siege.address, f"127.0.0.1:{middle.sockets[0].getsockname()[1]}"
            line, channel = await control(siege, {"op": "hello", "holding": []})
            await until(lambda: "south" in siege.server._dispatcher.sessions)
            before = len([r for r in caplog.records if "is connected" in r.getMessage()])
            await shout(real, bytes(seen))
            await until(lambda: any("a connection" in line for line in warnings(caplog)))
            assert len([r for r in caplog.records if "is connected" in r.getMessage()]) == before
            siege.address = real
            assert await siege.serves() == []
            del channel
            await line.close(within=0.1)
            middle.close()

    played(body)


@pytest.mark.both_carriers
def test_what_is_altered_on_the_wire_cuts_the_connection_and_loses_nothing(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            spoiled: list[int] = []

            def change(count: int, chunk: bytes) -> bytes:
                if len(spoiled) < 2 and count > 6000:  # the first two connections, in the middle
                    spoiled.append(count)
                    return chunk[:-1] + bytes([chunk[-1] ^ 1])
                return chunk

            _, serve = tapped(siege, change)
            middle = await asyncio.start_server(serve, "127.0.0.1", 0)
            real, siege.address = siege.address, f"127.0.0.1:{middle.sockets[0].getsockname()[1]}"
            async with siege.admin("vera") as admin:
                for _ in range(120):
                    assert await admin.jobs() == []
            assert len(spoiled) == 2
            siege.address = real
            assert await siege.serves() == []
            middle.close()

    played(body)


@pytest.mark.both_carriers
def test_a_site_cannot_write_into_the_log_of_a_job_that_is_not_its_own(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        from atoll.runtime.store.records import Submission

        async with besieged(kit, tmp_path) as siege:
            store = siege.server._store
            spec = {"name": "a", "job": "program", "program": "m:f", "sites": ["north"]}
            made = Submission(name="a", submitter="anna", org="u", spec=spec, token="t", bundle="")
            job = store.submit(made, now=0.0, who="anna").id
            line, _ = await control(
                siege, {"op": "hello", "holding": []}, {"op": "log", "job": job, "lines": ["forged"]}, {"op": "unknown"}
            )
            await until(lambda: "south" in siege.server._dispatcher.sessions)
            assert await siege.serves()
            assert store.lines(job) == []
            siege.server._log(job, "server", ["a\x1b[2J\x07b", "one\nserver: two", "x" * 9000])
            shown = [row.text for row in store.lines(job)]
            assert shown[:2] == ["a\ufffd[2J\ufffdb", "one ⏎ server: two"]
            assert len(shown[2]) == 4000
            with pytest.raises(JobError, match="there is no job"):
                store.get("no")
            await line.close(within=0.1)

    played(body)
