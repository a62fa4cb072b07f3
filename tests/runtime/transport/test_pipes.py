"""Every transport keeps the promises of a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from atoll.core.errors import ConfigError
from atoll.runtime import transport as transports
from atoll.runtime.identity import peer_of
from atoll.runtime.provision import project
from atoll.runtime.transport import TRANSPORTS, Pipe, PipeClosed, local_pipe, transport
from atoll.runtime.transport.base import LARGEST, join_address, split
from tests.support.certificates import authority
from tests.support.sources import imports, modules

SERVER = authority().issue("server", "hub")
SITE = authority().issue("site", "north")
KINDS = [*TRANSPORTS, "local"]


def run(play: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def connected(kind: str) -> AsyncIterator[tuple[Pipe, Pipe]]:
    """The site's pipe and the server's."""
    if kind == "local":
        one, other = socket.socketpair()
        pipes = await local_pipe(one, peer_of(SERVER.certificate)), await local_pipe(other, peer_of(SITE.certificate))
        yield pipes
        for pipe in pipes:
            await pipe.close()
        return
    came: asyncio.Queue[Pipe] = asyncio.Queue()
    way = transport(kind)
    listener = await way.listen("127.0.0.1:0", SERVER, came.put)
    dialled = await way.dial(listener.address, SITE)
    yield dialled, await came.get()
    await dialled.close()
    await listener.close()


async def send_for_ever(pipe: Pipe) -> None:
    while True:
        await pipe.send(b"x")
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_end_knows_the_other(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (site, server):
            assert isinstance(site, Pipe)
            assert (site.peer.role, site.peer.name) == ("server", "hub")
            assert (server.peer.role, server.peer.name, server.peer.org) == ("site", "north", "North")

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_come_whole_and_in_order_in_both_directions(kind: str) -> None:
    blocks = [bytes([n]) * size for n, size in enumerate([1, 3, 70_000, 2, LARGEST, 1, 16_384])]

    async def say(pipe: Pipe) -> None:
        for block in blocks:
            await pipe.send(block[:1], block[1:2], block[2:])

    async def hear(pipe: Pipe) -> None:
        for block in blocks:
            assert bytes(await pipe.recv()) == block

    async def play() -> None:
        async with connected(kind) as (one, other):
            await asyncio.gather(say(one), hear(other), say(other), hear(one))

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_waits_for_a_receiver_that_does_not_read(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, other):
            sent = 0

            async def flood() -> None:
                nonlocal sent
                for _ in range(60):
                    await one.send(bytes(1 << 20))
                    sent += 1

            flooding = asyncio.create_task(flood())
            before = -1
            while before < sent or sent == 0:  # until nothing more is taken
                before = sent
                for _ in range(50):
                    await asyncio.sleep(0.0005)
            assert sent < 40
            for _ in range(60):
                assert len(await other.recv()) == 1 << 20
            await flooding

    run(play)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closer", [0, 1])
def test_a_closed_pipe_ends_both_ends(kind: str, closer: int) -> None:
    async def play() -> None:
        async with connected(kind) as pipes:
            waiting = asyncio.create_task(pipes[1 - closer].recv())
            own = asyncio.create_task(pipes[closer].recv())
            await asyncio.sleep(0)
            await pipes[closer].close()
            await pipes[closer].close()
            for task in (waiting, own):
                with pytest.raises(PipeClosed, match=r"\w"):
                    await task
            with pytest.raises(PipeClosed, match=r"\w"):
                await pipes[closer].send(b"x")
            with pytest.raises(PipeClosed, match=r"\w"):
                await send_for_ever(pipes[1 - closer])

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_an_oversized_block_is_not_sent(kind: str) -> None:
    async def play() -> None:
        async with connected(kind) as (one, _):
            with pytest.raises(PipeClosed, match="are allowed"):
                await one.send(bytes(LARGEST + 1))

    run(play)


@pytest.mark.parametrize("announced", [0, LARGEST + 1, 0xFFFFFFFF])
def test_an_announced_oversized_block_ends_the_pipe_before_memory_is_asked_for(announced: int) -> None:
    async def play() -> None:
        one, other = socket.socketpair()
        pipe = await local_pipe(one, peer_of(SITE.certificate))
        other.sendall(announced.to_bytes(4, "little") + b"abc")
        with pytest.raises(PipeClosed, match=f"a block of {announced} bytes was announced"):
            await pipe.recv()
        await pipe.close()
        other.close()

    run(play)


def test_a_block_cut_off_in_the_middle_is_not_handed_on() -> None:
    async def play() -> None:
        one, other = socket.socketpair()
        pipe = await local_pipe(one, peer_of(SITE.certificate))
        other.sendall((10).to_bytes(4, "little") + b"abc")
        other.close()
        with pytest.raises(PipeClosed, match="middle of a block"):
            await pipe.recv()
        await pipe.close()

    run(play)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_an_address_that_is_taken_is_refused(kind: str) -> None:
    async def nothing(pipe: Pipe) -> None:
        await pipe.close()

    async def play() -> None:
        way = transport(kind)
        listener = await way.listen("127.0.0.1:0", SERVER, nothing)
        with pytest.raises(OSError, match="in use") as refused:
            await way.listen(listener.address, SERVER, nothing)
        assert refused.value.errno == errno.EADDRINUSE
        assert "listen" not in str(refused.value)  # whoever asked says that
        await listener.close()
        with pytest.raises(OSError, match=r"onnect|listens"):
            await way.dial(listener.address, SITE)

    run(play)


def test_addresses_are_host_and_port() -> None:
    assert split("example.org:8443") == ("example.org", 8443)
    assert split("[::1]:80") == ("::1", 80)
    assert join_address(*split("[::1]:80")) == "[::1]:80"
    for wrong in ("example.org", ":80", "example.org:http", "example.org:70000"):
        with pytest.raises(ConfigError, match="is not an address"):
            split(wrong)


def test_an_unknown_transport_is_named() -> None:
    with pytest.raises(ConfigError, match=r"transport is 'gprc'\. Did you mean 'grpc'"):
        transport("gprc")


def _plugged(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> Any:
    """The transports as they are where distributions list these entry points."""
    found = [EntryPoint(name, value, "atoll.transports") for name, value in points]
    monkeypatch.setattr(transports, "entry_points", lambda group: found if group == "atoll.transports" else [])
    return type(TRANSPORTS)()


def test_an_installed_distribution_brings_a_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    point = ("quic", "atoll.runtime.transport.memory:MemoryTransport")
    found = _plugged(monkeypatch, point, point)  # one distribution may be found twice on the path
    assert list(found) == ["tcp", "memory", "quic"]
    assert type(found["quic"]()) is type(transport("memory"))
    monkeypatch.setattr(project, "TRANSPORTS", found)
    named = TypeAdapter(project.TransportName)
    assert named.validate_python("quic") == "quic"
    for name in ("memory", "grpc"):  # within one process; not installed here
        with pytest.raises(ValidationError, match="is not installed: choose tcp or quic"):
            named.validate_python(name)


@pytest.mark.parametrize("taken", ["tcp", "quic"])
def test_no_transport_takes_the_place_of_another(monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    found = _plugged(monkeypatch, ("quic", "one:Quic"), (taken, "other:Way"))
    with pytest.raises(
        ConfigError, match=f"the transport '{taken}' of other:Way has the name of one of (Atoll|one:Quic)"
    ):
        list(found)


def test_only_its_entry_point_knows_the_grpc_transport() -> None:
    """Whoever imports it loads gRPC, which an installation without that extra does not have."""
    told = [
        item.where
        for module in modules()
        if "rpc" in module.text  # few files: to parse all of them takes seconds
        for item in imports(module)
        if item.eager and "transport.rpc" in item.target
    ]
    assert not told
    points = {point.name: point.value for point in entry_points(group="atoll.transports")}
    assert points["grpc"] == "atoll.runtime.transport.rpc:GrpcTransport"
