"""Who is not to be connected is not, over either network transport, and the listener stays up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials, peer_of
from atoll.runtime.transport import Pipe, transport
from atoll.runtime.transport.base import reason, refusal
from atoll.runtime.transport.sockets import client_context, own, server_context
from tests.support.certificates import authority

HERE = authority()
SERVER = HERE.issue("server", "hub")
SITE = HERE.issue("site", "north")
FOREIGN = authority("elsewhere").issue("site", "north", project="study")
NETWORKS = ["tcp", "grpc"]


def run(play: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


async def refused(
    kind: str,
    guest: Credentials,
    server: Credentials = SERVER,
    revoked: Callable[[int], bool] = lambda _: False,
    **how: Any,
) -> Exception:
    """What the dialler is told; nobody may come in, and an honest site still can."""
    came: asyncio.Queue[str] = asyncio.Queue()

    async def accept(pipe: Pipe) -> None:
        await came.put(pipe.peer.name)

    way = transport(kind)
    listener = await way.listen("127.0.0.1:0", server, accept, revoked)
    with pytest.raises((IdentityError, OSError), match=r"\w") as found:
        await way.dial(listener.address, guest, **how)
    assert came.empty()
    if server is SERVER and not how:
        await (await way.dial(listener.address, HERE.issue("site", "honest"))).close()
        assert await came.get() == "honest"
    await listener.close()
    return found.value


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_party_of_another_authority(kind: str) -> None:
    async def play() -> None:
        stranger = Credentials(HERE.pem, FOREIGN.certificate, FOREIGN.key)
        error = await refused(kind, stranger)
        assert "may not take this end's certificate" in str(error)
        error = await refused(kind, FOREIGN)
        assert isinstance(error, IdentityError)
        assert "CERTIFICATE_VERIFY_FAILED" in str(error)

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_an_expired_certificate(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        expired = HERE.issue("site", "old", expired=True)
        assert "expired on" in str(await refused(kind, expired))
        module = "rpc" if kind == "grpc" else "tcp"  # a site that does not look at its own certificate
        monkeypatch.setattr(f"atoll.runtime.transport.{module}.own", lambda c: peer_of(c.certificate))
        assert "may not take this end's certificate" in str(await refused(kind, expired))

    run(play)


@pytest.mark.parametrize("kind", [*NETWORKS, "memory"])
def test_a_revoked_certificate(kind: str) -> None:
    serial = peer_of(SITE.certificate).serial

    async def play() -> None:
        error = await refused(kind, SITE, revoked=lambda number: number == serial)
        assert isinstance(error, IdentityError)
        assert "was revoked" in error.what
        assert (
            error.remedy
            == "if it is to take part again, the project's provisioner makes a new kit: atoll provision PROJECT --renew north"
        )

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_certificate_revoked_while_the_listener_runs_is_refused_at_the_next_connection(kind: str) -> None:
    gone: set[int] = set()

    async def play() -> None:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        way = transport(kind)
        listener = await way.listen("127.0.0.1:0", SERVER, came.put, gone.__contains__)
        await (await way.dial(listener.address, SITE)).close()
        gone.add(peer_of(SITE.certificate).serial)
        with pytest.raises(IdentityError, match="was revoked"):
            await way.dial(listener.address, SITE)
        await listener.close()

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_party_of_another_project_of_the_same_authority(kind: str) -> None:
    async def play() -> None:
        assert "belongs to project" in str(await refused(kind, HERE.issue("site", "north", project="trial")))

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_server_cannot_come_as_a_client_nor_a_site_be_a_server(kind: str) -> None:
    async def play() -> None:
        assert await refused(kind, HERE.issue("server", "hub2"))
        error = await refused(kind, SITE, server=HERE.issue("site", "east"), server_name="localhost")
        assert isinstance(error, IdentityError)
        assert "purpose" in str(error)

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_server_of_another_name_is_refused(kind: str) -> None:
    async def play() -> None:
        for server in (SERVER, HERE.issue("server", "other", dns=("other.org",))):
            error = await refused(kind, SITE, server=server, server_name="hub.example.org")
            assert isinstance(error, IdentityError)

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_revoked_server_is_refused_by_the_dialler(kind: str) -> None:
    serial = peer_of(SERVER.certificate).serial

    async def play() -> None:
        way = transport(kind)
        listener = await way.listen("127.0.0.1:0", SERVER, Pipe.close)
        with pytest.raises(IdentityError, match="was revoked"):
            await way.dial(listener.address, SITE, None, lambda number: number == serial)
        await listener.close()

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
def test_garbage_instead_of_a_handshake_leaves_the_listener_up(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        came: asyncio.Queue[Pipe] = asyncio.Queue()
        way = transport(kind)
        listener = await way.listen("127.0.0.1:0", SERVER, came.put)
        host, _, port = listener.address.rpartition(":")
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 100):
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(OSError):  # the listener may hang up first
                writer.write(garbage)
                writer.write_eof()
                await reader.read()
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()
        await (await way.dial(listener.address, SITE)).close()
        await listener.close()

    run(play)
    assert kind == "grpc" or caplog.text.count("is refused") == 3


def _handshake(context: ssl.SSLContext, address: str) -> str | None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        return tls.version()


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_listener_speaks_tls_1_3_only(kind: str) -> None:
    async def play() -> None:
        listener = await transport(kind).listen("127.0.0.1:0", SERVER, Pipe.close)
        modern, old = client_context(SITE), client_context(SITE)
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await asyncio.to_thread(_handshake, modern, listener.address) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionResetError), match=r"\w"):
            await asyncio.to_thread(_handshake, old, listener.address)
        await listener.close()

    run(play)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("old", [True, False])
def test_a_dialler_speaks_tls_1_3_only(kind: str, old: bool) -> None:
    context = server_context(SERVER)
    if old:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    spoken: list[str | None] = []

    def serve(place: socket.socket) -> None:
        taken, _ = place.accept()
        with taken:
            try:
                with context.wrap_socket(taken, server_side=True) as tls:
                    spoken.append(tls.version())
            except OSError:
                spoken.append(None)

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as place:
            serving = asyncio.create_task(asyncio.to_thread(serve, place))
            address = f"127.0.0.1:{place.getsockname()[1]}"
            with pytest.raises((IdentityError, OSError), match=r"\w"):
                await transport(kind).dial(address, SITE)
            await serving
        assert spoken == ([None] if old else ["TLSv1.3"])

    run(play)


def test_what_a_listener_says_is_bounded_and_can_be_printed() -> None:
    error = refusal("hub:1", "no\x1b[2J way\n. Remedy: go\u202e away" + "!" * 10_000)
    assert error.what == "no connection to hub:1: no[2J way"
    assert str(error.remedy).startswith("go away!")
    assert str(error.remedy).isprintable()
    assert len(str(error)) < 1200
    assert "kits of the same project" in str(refusal("hub:1", "no").remedy)
    assert len(reason(IdentityError("w" * 5000, remedy="r"))) == 1000


def test_credentials_that_do_not_belong_together_are_refused() -> None:
    other = HERE.issue("site", "south")
    with pytest.raises(IdentityError, match="do not work together"):
        client_context(Credentials(SITE.ca, SITE.certificate, other.key))
    with pytest.raises(IdentityError, match="do not work together"):
        server_context(Credentials(b"nothing", SITE.certificate, SITE.key))


def test_a_certificate_of_the_future_is_named() -> None:
    with pytest.raises(IdentityError, match=r"is valid from .* only UTC; it is 2020-01-01"):
        own(SITE, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
