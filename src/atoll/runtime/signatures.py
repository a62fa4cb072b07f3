"""Signatures with a party's own key, ECDSA (FIPS 186-5), and the chain from its certificate to the project's authority."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from .identity import Credentials, Peer, peer_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["fits", "require_issued", "sign"]


def sign(purpose: bytes, text: bytes, credentials: Credentials) -> bytes:
    """Sign with the party's own key: ECDSA with SHA-256, without randomness where the library can (RFC 6979).

    Args:
        purpose: signed before the text, so that no signature for one purpose fits another.
        text: the text to sign.
        credentials: of the party that signs.

    Raises:
        IdentityError: the key is unusable, or does not belong to the certificate.
        MissingExtraError: cryptography is not installed.
    """
    need("cryptography", "net", "signing")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    owner = str(peer_of(credentials.certificate))
    remedy = "use a kit whose files are as `atoll provision` made them"
    try:
        key = load_pem_private_key(credentials.key, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(f"the key of {owner} cannot be read: {error}", where="kit", remedy=remedy) from error
    certified = _certificates(credentials.certificate)[0].public_key()
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certified:
        raise IdentityError(f"the key does not match the certificate of {owner}", where="kit", remedy=remedy)
    return key.sign(purpose + text, _algorithm())


def fits(purpose: bytes, text: bytes, signature: bytes, certificate: bytes) -> bool:
    """Tell whether the owner of a certificate signed a text for a purpose. This does not check the certificate itself: see `require_issued`.

    Raises:
        IdentityError: it is not a certificate in PEM.
        MissingExtraError: cryptography is not installed.
    """
    need("cryptography", "net", "verifying a signature")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = _certificates(certificate)[0].public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, purpose + text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def require_issued(certificate: bytes, ca: bytes, now: datetime | None = None, then: datetime | None = None) -> None:
    """Refuse a certificate that no given authority issued, or that is not valid now.

    Args:
        certificate: PEM.
        ca: the authorities' certificates, PEM.
        now: the time; by default this machine's clock.
        then: an earlier time; being valid then is enough.

    Raises:
        IdentityError: it names the owner and the reason.
    """
    found, owner = _certificates(certificate)[0], peer_of(certificate)
    moment = datetime.now(UTC) if now is None else now
    issuer = next((a for a in _certificates(ca) if _issued(found, a)), None)
    if issuer is None:
        raise _make_refusal(owner, "no authority of this project has issued its certificate")
    for whose, each in (("its certificate", found), ("its authority's certificate", issuer)):
        begin, end = each.not_valid_before_utc, each.not_valid_after_utc
        if not any(begin <= when <= end for when in (moment, then) if when is not None):
            raise _make_refusal(
                owner, f"{whose} is valid from {begin:%F %T} to {end:%F %T} UTC, and it is {moment:%F %T}"
            )


def _issued(certificate: Certificate, authority: Certificate) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        basic = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(authority)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
        return False
    return basic.ca


def _certificates(pem: bytes) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise IdentityError(
            f"not a certificate in PEM: {error}", where="certificate", remedy="use a kit that `atoll provision` made"
        ) from error


def _make_refusal(owner: Peer, why: str) -> IdentityError:
    return IdentityError(
        f"{owner} is refused: {why}",
        where=f"certificate {owner.fingerprint[:16]}",
        remedy="check the clocks of both machines, or ask the project's provisioner for a new kit",
    )


def _algorithm() -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except (
        TypeError,
        UnsupportedAlgorithm,
    ):  # older libraries have no such option: the signature differs each time and is just as good
        return ec.ECDSA(hashes.SHA256())
