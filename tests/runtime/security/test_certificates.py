"""Who may connect: each wrong party is refused with a clear line in the log, and a good one is served afterwards.

Over the real transports, on real sockets.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials
from atoll.runtime.provision import Kit, Revocations
from atoll.runtime.transport import Listener, Pipe, transport
from tests.support.waiting import until

Kits = Callable[[str], Kit]
TRANSPORTS = ["grpc", "tcp"]
REFUSED = (IdentityError, OSError)  # what a client sees: a refusal, or a connection that was ended


@asynccontextmanager
async def listening(
    name: str, kit: Kit, revoked: Callable[[int], bool] = lambda serial: False
) -> AsyncIterator[Listener]:
    """A server that says hello to everybody whom it lets in."""

    async def accept(pipe: Pipe) -> None:
        await pipe.send(f"hello {pipe.peer.role} {pipe.peer.name}".encode())

    listener = await transport(name).listen("127.0.0.1:0", kit.credentials(), accept, revoked)
    try:
        yield listener
    finally:
        await listener.close()


async def greeted(name: str, address: str, credentials: Credentials) -> str:
    pipe = await transport(name).dial(address, credentials)
    try:
        return bytes(await pipe.recv()).decode()
    finally:
        await pipe.close()


def stolen(kit: Kit, ca: Kit) -> Credentials:
    """A party's own certificate and key, trusting another's authority: it wants to get as far as it can."""
    return replace(kit.credentials(), ca=ca.credentials().ca)


WRONG = {
    "foreign authority": ("foreign/north", "certificate"),
    "expired": ("expired/north", "expired"),
    "not begun": ("early/north", "not yet valid"),
    "another project's": ("hearts/north", r"site 'north' .* belongs to project 'hearts', not 'lungs'"),
    "a server's": ("ours/server", "certificate|cannot act as"),
    "revoked": ("ours/south", r"site 'south' of 'South' is refused: its certificate \(serial [0-9a-f]+\) was revoked"),
}
UNTOLD = r"a connection from 127\.0\.0\.1:\d+ is refused: it ended before its handshake was done"
ABOVE_TLS = {"hearts/north", "ours/south"}  # good certificates for TLS, refused by what they say


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize(("path", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_party_is_refused_by_the_server_and_the_next_good_one_is_served(
    name: str, path: str, said: str, kit: Kits, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, good = kit(path), kit("ours/north")
    bad_serial = kit("ours/south").peer().serial
    # An attacker's client leaves out what ours checks of itself first.
    module = "atoll.runtime.transport." + {"grpc": "rpc", "tcp": "tcp"}[name]
    monkeypatch.setattr(f"{module}.own", lambda credentials: good.peer())

    async def run() -> None:
        async with listening(name, kit("ours/server"), lambda serial: serial == bad_serial) as listener:
            with pytest.raises(REFUSED, match=r"\w"):
                await asyncio.wait_for(greeted(name, listener.address, stolen(wrong, good)), 10)
            assert await greeted(name, listener.address, good.credentials()) == "hello site north"
            await until(lambda: "refused" in caplog.text)

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    # gRPC's own handshake tells nobody why it refuses: the log says who came, and that it was not to be.
    assert re.search(said if name == "tcp" or path in ABOVE_TLS else UNTOLD, lines[0]), lines


def _at(listener: Listener) -> tuple[str, int]:
    host, _, port = listener.address.rpartition(":")
    return host, int(port)


def _raw(kit: Kit, ca: Kit, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    context.load_verify_locations(cadata=ca.bytes_of("ca.pem").decode())
    context.load_cert_chain(kit.folder / "certificate.pem", kit.folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize("name", TRANSPORTS)
def test_tls_1_2_and_nobodys_certificate_are_refused(name: str, kit: Kits) -> None:
    good = kit("ours/north")

    def old(address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=10) as plain:
            _raw(good, good, ssl.TLSVersion.TLSv1_2).wrap_socket(plain, server_hostname="localhost")

    def bare(address: tuple[str, int]) -> None:
        context = ssl.create_default_context(cadata=good.bytes_of("ca.pem").decode())
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(address, timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            if not wrapped.recv(1):
                raise ConnectionResetError("ended without an alert: reset")

    async def run() -> None:
        async with listening(name, kit("ours/server")) as listener:
            with pytest.raises(OSError, match=r"(?i)version|handshake|cipher|EOF|reset"):
                await asyncio.to_thread(old, _at(listener))
            with pytest.raises(OSError, match=r"(?i)certificate required|handshake|EOF|reset"):
                await asyncio.to_thread(bare, _at(listener))
            assert await greeted(name, listener.address, good.credentials()) == "hello site north"

    asyncio.run(run())


IMPOSTORS = {
    "a site's kit": "ours/north",
    "an admin's kit": "ours/anna",
    "foreign authority": "foreign/server",
    "expired": "expired/server",
    "another project's": "hearts/server",
    "a site of the host's name": "ours/localhost",
}


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("path", IMPOSTORS.values(), ids=IMPOSTORS)
def test_a_client_refuses_an_impostor_of_the_server(name: str, path: str, kit: Kits) -> None:
    async def run() -> None:
        async with listening(name, kit(path)) as listener:
            address = listener.address.replace("127.0.0.1", "localhost")
            with pytest.raises(REFUSED, match=r"\w"):
                await asyncio.wait_for(greeted(name, address, kit("ours/south").credentials()), 10)
        async with listening(name, kit("ours/server")) as listener:  # it was not the way that was wrong
            address = listener.address.replace("127.0.0.1", "localhost")
            assert await greeted(name, address, kit("ours/south").credentials()) == "hello site south"

    asyncio.run(run())


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_revocation_counts_at_the_next_connection_without_a_restart(name: str, kit: Kits, tmp_path: Path) -> None:

    from atoll.runtime.provision import ProjectConfig, provision

    site = {"name": "north", "org": "North"}
    project = ProjectConfig.model_validate(
        {"project": "p", "servers": [{"name": "server", "hosts": ["127.0.0.1"]}], "sites": [site]}
    )
    provision(project, tmp_path)
    server, north = Kit.read(tmp_path / "server"), Kit.read(tmp_path / "north")
    running = tmp_path / "running.crl"
    shutil.copy(server.revoked_file, running)
    revoked = Revocations(running, server.folder / "ca.pem")

    async def run() -> None:
        async with listening(name, server, revoked) as listener:
            before = north.credentials()
            assert await greeted(name, listener.address, before) == "hello site north"
            provision(project, tmp_path, revoke=["north"], renew=["north"])
            shutil.copy(server.revoked_file, running)
            with pytest.raises(REFUSED, match=r"\w"):
                await asyncio.wait_for(greeted(name, listener.address, before), 10)
            assert await greeted(name, listener.address, north.credentials()) == "hello site north"

    asyncio.run(run())


def test_a_party_is_who_its_certificate_says_whatever_its_settings_say(kit: Kits, tmp_path: Path) -> None:
    """A site that edits its own kit is stopped there; one that does without the kit's check is a site all the same."""

    shutil.copytree(kit("ours/north").folder, tmp_path / "north")
    settings = tmp_path / "north" / "kit.yaml"
    settings.write_text(settings.read_text().replace("role: site", "role: admin"))
    with pytest.raises(IdentityError, match=r"kit.yaml says admin 'north'"):
        Kit.read(tmp_path / "north").credentials()
    own = kit("ours/north").credentials()

    async def run() -> str:
        async with listening("tcp", kit("ours/server")) as listener:
            return await greeted("tcp", listener.address, own)

    assert asyncio.run(run()) == "hello site north"
