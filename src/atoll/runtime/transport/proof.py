"""How the dialled end proves its name over gRPC.

In Python, a gRPC dialler cannot see the certificate that TLS has verified. It only knows that the project's authority
issued it for the dialled name. Several parties may share that name (a gateway, one machine), or a thief may hold a key
whose certificate was revoked. So the dialler sends a fresh random number, and the other end answers with its
certificate and a signature over that number and the dialler's fingerprint. Nobody can sign in another's name, and a
signature for one dialler is useless to another: a party in the middle cannot pass it on.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials, Peer
from atoll.runtime.signatures import fits, require_issued, sign

from .base import Admission

__all__ = ["CERTIFICATE", "draw_question", "proof_of", "proven"]

_ASKED, CERTIFICATE, _SIGNATURE = "atoll-challenge-bin", "atoll-certificate-bin", "atoll-signature-bin"
_PURPOSE = b"atoll listener 1\n"
_LENGTH = 32

Metadata = tuple[tuple[str, bytes], ...]


def draw_question() -> tuple[bytes, Metadata]:
    """Draw 32 random bytes; return them and the metadata that the dialler sends with its call."""
    number = secrets.token_bytes(_LENGTH)
    return number, ((_ASKED, number),)


def proof_of(credentials: Credentials, guest: Peer, metadata: Mapping[str, Any]) -> Metadata:
    """Return the answer of the dialled end.

    Args:
        credentials: of this end.
        guest: the party that dials, as TLS has verified it.
        metadata: of its call.

    Raises:
        IdentityError: the call has no number of 32 bytes.
    """
    number = metadata.get(_ASKED)
    if not isinstance(number, bytes) or len(number) != _LENGTH:
        raise IdentityError(
            f"{guest} asks for no proof of this end's name",
            where="call",
            remedy="run one version of Atoll at both ends",
        )
    signature = sign(_PURPOSE, _text(number, guest), credentials)
    return (CERTIFICATE, credentials.certificate), (_SIGNATURE, signature)


def proven(admission: Admission, me: Peer, number: bytes, metadata: Mapping[str, Any]) -> Peer:
    """Return the party that a proof belongs to, if this end accepts it.

    Args:
        admission: whom this end accepts.
        me: this end.
        number: the number that `draw_question` drew for this call.
        metadata: the answer.

    Raises:
        IdentityError: the other end presents no certificate, or one of a foreign authority, of another project or role,
            revoked, or not its own.
    """
    certificate, signature = metadata.get(CERTIFICATE), metadata.get(_SIGNATURE)
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes):
        raise _unproven("the other end does not prove its name", "run one version of Atoll at both ends")
    peer = admission.judge_certificate(certificate, me)
    require_issued(certificate, admission.credentials.ca)
    if not fits(_PURPOSE, _text(number, me), signature, certificate):
        raise _unproven(
            f"the other end presents the certificate of {peer} without its key",
            "somebody else answers at this address: tell the project's provisioner",
        )
    return peer


def _text(number: bytes, dialler: Peer) -> bytes:
    return number + dialler.fingerprint.encode("ascii")


def _unproven(what: str, remedy: str) -> IdentityError:
    return IdentityError(what, where="connecting", remedy=remedy)
