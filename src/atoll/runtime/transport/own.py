"""Checks that a party makes of its own certificate before it dials."""

from __future__ import annotations

from datetime import UTC, datetime

from atoll.core.errors import IdentityError
from atoll.core.extras import need
from atoll.runtime.identity import Credentials, Peer, peer_of

from .refusals import OWN

__all__ = ["UNWELCOME", "own"]

UNWELCOME = "it may not take this end's certificate: see the log of the server"
"""Reported when a connection ends right after the handshake: in TLS 1.3 the dialler's certificate is checked after the dialler is done."""


def own(credentials: Credentials, now: datetime | None = None) -> Peer:
    """Return who this end is, if its certificate is valid today.

    Args:
        credentials: of this end.
        now: the time; None asks the clock.

    Raises:
        IdentityError: the certificate has expired, is not valid yet, or belongs to no party.
    """
    x509 = need("cryptography.x509", "net", "reading a certificate")
    me = peer_of(credentials.certificate)
    found = x509.load_pem_x509_certificate(credentials.certificate)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    now = now or datetime.now(UTC)
    if begin <= now <= end:
        return me
    words = f"expired on {end:%Y-%m-%d %H:%M}" if now > end else f"is valid from {begin:%Y-%m-%d %H:%M} only"
    raise IdentityError(
        f"the certificate of {me} {words} UTC; it is {now:%Y-%m-%d %H:%M} here",
        where=OWN,
        remedy=f"if the clock is right, ask for a new kit: atoll provision PROJECT --renew {me.name}",
    )
