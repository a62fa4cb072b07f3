"""Who signed a bundle: ECDSA (FIPS 186-5) over its manifest, and the chain from the signer's certificate to the project's authority."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.core.errors import BundleError, IdentityError
from atoll.data._extra import need

from ..identity import Credentials, Peer, admit, peer_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["require_issued", "require_signature", "sign"]

_PURPOSE = b"atoll job bundle 1\n"
"""Signed with the manifest, so that no signature for another purpose fits."""


def sign(text: bytes, credentials: Credentials) -> bytes:
    """Sign a manifest with one's own key: ECDSA with SHA-256, without randomness where the library can (RFC 6979).

    Raises:
        IdentityError: the key is no usable key, or not the certificate's.
        MissingExtraError: cryptography is not installed.
    """
    need("cryptography", "net", "signing a job")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    remedy = "use the kit that `atoll provision` made for this administrator"
    owner = str(peer_of(credentials.certificate))
    try:
        key = load_pem_private_key(credentials.key, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError(f"the key of {owner} cannot be read: {error}", where="kit", remedy=remedy) from error
    certified = _certificates(credentials.certificate)[0].public_key()
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certified:
        raise IdentityError(f"the key is not that of the certificate of {owner}", where="kit", remedy=remedy)
    return key.sign(_PURPOSE + text, _algorithm())


def _algorithm() -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except (TypeError, UnsupportedAlgorithm):  # an older library: the signature differs every time, and is as good
        return ec.ECDSA(hashes.SHA256())


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
) -> Peer:
    """Refuse a manifest that no party of these roles in this project has signed; the signer.

    Raises:
        IdentityError: the signer's certificate is of a foreign authority, out of date, revoked, or of another project or role.
        BundleError: the signature does not fit.
        MissingExtraError: cryptography is not installed.
    """
    need("cryptography", "net", "verifying a job")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    signer = admit(certificate, project=project, roles=roles, revoked=revoked)
    require_issued(certificate, ca, now)
    key = _certificates(certificate)[0].public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, _PURPOSE + text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise BundleError(
            f"the signature is not that of {signer}",
            where="bundle",
            remedy="it was altered on the way, or another key signed it: submit the job again from its folder",
        ) from error
    return signer


def require_issued(certificate: bytes, ca: bytes, now: datetime | None = None) -> None:
    """Refuse a certificate that none of the authorities has issued, or that is not valid now.

    Args:
        certificate: PEM.
        ca: the authorities, PEM.
        now: by default this machine's clock.

    Raises:
        IdentityError: it names the owner and the reason.
    """
    found, owner = _certificates(certificate)[0], peer_of(certificate)
    moment = datetime.now(UTC) if now is None else now
    issuer = next((a for a in _certificates(ca) if _issued(found, a)), None)
    if issuer is None:
        raise _refused(owner, "no authority of this project has issued its certificate")
    for whose, each in (("its certificate", found), ("its authority's certificate", issuer)):
        if not each.not_valid_before_utc <= moment <= each.not_valid_after_utc:
            begin, end = each.not_valid_before_utc, each.not_valid_after_utc
            raise _refused(owner, f"{whose} is valid from {begin:%F %T} to {end:%F %T} UTC, and it is {moment:%F %T}")


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


def _refused(owner: Peer, why: str) -> IdentityError:
    return IdentityError(
        f"{owner} is refused: {why}",
        where=f"certificate {owner.fingerprint[:16]}",
        remedy="check the clocks of both machines, or ask the project's provisioner for a new kit",
    )
