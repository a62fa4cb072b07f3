"""Who signed a bundle: an ECDSA signature over its manifest, by a party of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from atoll.core.errors import BundleError

from .. import signatures
from ..identity import Credentials, Peer, admit

__all__ = ["require_signature", "sign"]

_PURPOSE = b"atoll job bundle 1\n"


def sign(text: bytes, credentials: Credentials) -> bytes:
    """Sign a manifest with the party's own key.

    Raises:
        IdentityError: the key is unusable, or does not belong to the certificate.
        MissingExtraError: cryptography is not installed.
    """
    return signatures.sign(_PURPOSE, text, credentials)


def require_signature(
    text: bytes,
    signature: bytes,
    certificate: bytes,
    *,
    ca: bytes,
    project: str,
    roles: Iterable[str],
    revoked: Callable[[int], bool] | None,
    now: datetime | None = None,
    then: datetime | None = None,
) -> Peer:
    """Refuse a manifest that no party of these roles in this project has signed; return the signer. With ``then``, a certificate that was valid at that time is enough.

    Raises:
        IdentityError: the signer's certificate is of a foreign authority, out of date, revoked, or of another project
            or role.
        BundleError: the signature does not fit.
        MissingExtraError: cryptography is not installed.
    """
    signer = admit(certificate, project=project, roles=roles, revoked=revoked)
    signatures.require_issued(certificate, ca, now, then)
    if not signatures.fits(_PURPOSE, text, signature, certificate):
        raise BundleError(
            f"the signature is not by {signer}",
            where="bundle",
            remedy="it was altered on the way, or another key signed it: submit the job again from its folder",
        )
    return signer
