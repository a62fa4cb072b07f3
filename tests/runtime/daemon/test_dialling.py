"""The ways from a kit to its servers: the next one is tried where one cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.daemon.control import dialler
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.transport import Listener, Pipe, PipeClosed, transport
from atoll.runtime.transport.base import split


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two servers."""
    settings = {
        "project": "two", "transport": "tcp", "sites": [{"name": "north", "org": "x"}],
        "servers": [{"name": name, "hosts": ["127.0.0.1"], "port": 8000 + i} for i, name in enumerate(("main", "spare"))],
    }  # fmt: skip
    return provision(ProjectConfig.model_validate(settings), tmp_path_factory.mktemp("kits")).folder


def site_at(kits: Path, *ports: int) -> Kit:
    """The site's kit, with its servers at these ports."""
    kit = Kit.read(kits / "north")
    servers = [s.model_copy(update={"port": port}) for s, port in zip(kit.config.servers, ports, strict=True)]
    return replace(kit, config=kit.config.model_copy(update={"servers": servers}))


async def listening(kits: Path, name: str) -> tuple[Listener, int]:
    kit = Kit.read(kits / name)

    async def accept(pipe: Pipe) -> None:
        with contextlib.suppress(PipeClosed):
            await pipe.recv()
        await pipe.close()

    listener = await transport("tcp").listen("127.0.0.1:0", kit.credentials(), accept, lambda serial: False)
    return listener, split(listener.address)[1]


async def reached(dial: Callable[[], object]) -> str:
    pipe = await dial()  # type: ignore[misc]
    name = pipe.peer.name
    await pipe.close()
    return str(name)


def test_the_next_server_is_dialled_where_nobody_listens(kits: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "atoll.runtime")

    def in_vain() -> list[str]:
        found = [r.getMessage().split(" at ")[0] for r in caplog.records if "cannot be reached at" in r.getMessage()]
        caplog.clear()
        return found

    async def body() -> None:
        with socket.socket() as held:  # bound, so that nobody else gets it, and nobody listens
            held.bind(("127.0.0.1", 0))
            listener, port = await listening(kits, "spare")
            kit = site_at(kits, held.getsockname()[1], port)
            dial = dialler(kit)
            assert await reached(dial) == "spare"
            assert in_vain() == ["server 'main' cannot be reached"]
            assert await reached(dial) == "spare"  # it begins where it was last let in
            assert in_vain() == []
            assert await reached(dialler(kit, kit.ways[1].address)) == "spare"  # an address of the kit's has its name
            await listener.close()
            with pytest.raises(PipeClosed, match=rf"{port}.*; .*{kit.ways[0].port}"):
                await dial()
            assert in_vain() == ["server 'spare' cannot be reached", "server 'main' cannot be reached"]

            # It comes round again: the first one is there now, and the other one is not any more.
            listener, other = await listening(kits, "main")
            dial = dialler(site_at(kits, other, port))
            assert await reached(dial) == "main"
            await listener.close()

    asyncio.run(body())


def test_no_server_passes_for_another(kits: Path) -> None:
    """A wrong one at an address is no server that cannot be reached: a person must act, and nothing else is tried."""

    async def body() -> None:
        listener, port = await listening(kits, "spare")
        with pytest.raises(IdentityError, match="not valid for 'main'"):
            await dialler(site_at(kits, port, port))()
        await listener.close()

    asyncio.run(body())


@pytest.mark.parametrize("server", ["127.0.0.1", "fl.example.org:", "fl.example.org:https"])
def test_an_address_without_a_port_is_refused_before_anything_is_dialled(kits: Path, server: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{server}' is not an address.*give host:port"):
        dialler(Kit.read(kits / "north"), server)
