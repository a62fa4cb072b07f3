"""Over gRPC, too, the end that is dialled is who it says: it must sign what the dialler asks with the key of the certificate it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials, Peer, peer_of
from atoll.runtime.transport import Pipe, rpc, transport
from tests.support.certificates import authority

HERE = authority()
DIALLER = HERE.issue("site", "alice")
BOB = HERE.issue("site", "bob", usage="both")
CAROL = HERE.issue("site", "carol", usage="both")
SERVER = HERE.issue("server", "hub")
MIRROR = authority("elsewhere").issue("server", "hub", project="study")


async def dialled(roles: tuple[str, ...] = ("site",)) -> Peer:
    """Who is found where Carol listens."""
    way = transport("grpc")
    listener = await way.listen("127.0.0.1:0", CAROL, Pipe.close, roles=("site",))
    try:
        pipe = await way.dial(listener.address, DIALLER, None, roles=roles)
        await pipe.close()
        return pipe.peer
    finally:
        await listener.close()


def lying(monkeypatch: pytest.MonkeyPatch, certificate: bytes, key: Credentials, guest: Peer | None = None) -> None:
    """Let a listener show a certificate, and sign with a key, perhaps for another guest."""
    honest = rpc.proof_of

    def told(credentials: Credentials, dialler: Peer, metadata: Mapping[str, Any]) -> rpc.Metadata:
        del credentials
        _, signature = honest(key, guest or dialler, metadata)
        return (rpc.CERTIFICATE, certificate), signature

    monkeypatch.setattr(rpc, "proof_of", told)


def test_an_honest_listener_is_found_under_its_name() -> None:
    assert asyncio.run(dialled()).name == "carol"


@pytest.mark.parametrize(("whose", "role"), [(BOB, "site"), (SERVER, "server")])
def test_a_party_cannot_answer_with_anothers_certificate(
    monkeypatch: pytest.MonkeyPatch, whose: Credentials, role: str
) -> None:
    """Carol may listen at this address, by her own certificate; she has not the other's key."""
    lying(monkeypatch, whose.certificate, CAROL)
    with pytest.raises(IdentityError, match="without its key"):
        asyncio.run(dialled((role,)))


def test_nor_with_one_that_she_made_herself(monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, MIRROR.certificate, MIRROR)
    with pytest.raises(IdentityError, match="no authority of this project"):
        asyncio.run(dialled(("server",)))


def test_what_was_signed_for_one_dialler_is_of_no_use_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carol passes on what Bob has signed for her."""
    lying(monkeypatch, BOB.certificate, BOB, guest=peer_of(CAROL.certificate))
    with pytest.raises(IdentityError, match="without its key"):
        asyncio.run(dialled())


def test_a_revoked_key_cannot_hide_behind_the_renewed_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = HERE.issue("site", "carol", usage="both")
    lying(monkeypatch, renewed.certificate, CAROL)
    with pytest.raises(IdentityError, match="without its key"):
        asyncio.run(dialled())


def test_a_listener_signs_numbers_of_its_own_length_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "draw_question", lambda: (b"short", (("atoll-challenge-bin", b"short"),)))
    with pytest.raises(IdentityError, match="asks for no proof"):
        asyncio.run(dialled())
