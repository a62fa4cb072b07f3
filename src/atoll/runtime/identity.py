"""Who is at the other end: what a project's certificate says, and what a party presents.

A certificate names its owner four times, and all must agree: ``CN`` is the name, ``O`` the organisation, the URI in the
subject alternative name is ``atoll://<project>/<role>/<name>``, and the extended key usage says which end of a
connection it may be (RFC 5280, section 4.2.1). A helper's certificate also has an ``OU``: what the helper plays in jobs,
such as ``key holder``. No other certificate has one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.core.errors import IdentityError
from atoll.core.extras import need
from atoll.core.job import EDGE

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = [
    "HELPER",
    "NO_PARTS",
    "ROLES",
    "SITES",
    "Credentials",
    "Peer",
    "admit",
    "fits",
    "is_part",
    "peer_of",
    "require_issued",
    "sign",
    "uri_of",
]


# ------------------------------------------------------------------ who is at the other end: what a project's certificate says, and what a party presents


HELPER = "helper"
"""A site without clients: it plays a part that protocols need beside them, such as a key holder."""

SITES = ("site", HELPER)
"""Those that `atoll site` runs for."""

ROLES = ("server", *SITES, "admin", "auditor", "analyst")
"""What a certificate of a project may be for."""

NO_PARTS = ("client", EDGE, *ROLES)
"""What no helper plays: that is somebody else."""

_URI = re.compile(r"atoll://([^/]+)/([^/]+)/([^/]+)")


@dataclass(frozen=True)
class Peer:
    """The owner of a certificate.

    Attributes:
        name: unique in the project.
        role: one of ``ROLES``.
        org: the organisation.
        serial: of the certificate; what a revocation names.
        fingerprint: SHA-256 of the certificate (DER), in hex.
        project: the project it was issued for.
        plays: a helper's part in jobs, such as ``key holder``; nothing for all others.
    """

    name: str
    role: str
    org: str
    serial: int
    fingerprint: str
    project: str = ""
    plays: str = ""

    def __str__(self) -> str:
        plays = f" ({self.plays})" if self.plays else ""
        return f"{self.role} {self.name!r}{plays} of {self.org!r}"


@dataclass(frozen=True)
class Credentials:
    """What a party proves its name with, all PEM. ``repr`` never shows the key.

    Attributes:
        ca: certificates of the authorities it trusts.
        certificate: its own.
        key: its private key, not encrypted.
    """

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)


def is_part(word: str) -> bool:
    """Whether a word can be what a helper plays: a certificate must be able to say it, and it is nobody else's."""
    return 0 < len(word) <= 64 and word.isprintable() and word == word.strip() and word not in NO_PARTS


def uri_of(project: str, role: str, name: str) -> str:
    """Return the name in a certificate that binds project, role and name: ``atoll://project/role/name``."""
    return f"atoll://{project}/{role}/{name}"


def peer_of(certificate: bytes) -> Peer:
    """Read the owner from a certificate (PEM or DER). This does not check who signed it: TLS has done that.

    Raises:
        IdentityError: it is not a project's certificate, or its four names disagree.
        MissingExtraError: cryptography is not installed.
    """
    found = _parse_certificate(certificate)
    project, role, name = _read_names(found)
    org, plays = _subject(found, "O"), _optional(found, "OU")
    if _subject(found, "CN") != name:
        raise _unusable(f"the certificate's subject is {_subject(found, 'CN')!r} and its address says {name!r}")
    if role not in ROLES:
        raise _unusable(f"the certificate of {name!r} is for role {role!r}, which is none of {', '.join(ROLES)}")
    if bool(plays) != (role == HELPER):
        raise _unusable(f"the certificate of {role} {name!r} says that it plays {plays or 'nothing'!r} (OU)")
    uses = _uses(found)
    wanted = "serverAuth" if role == "server" else "clientAuth"
    # Other sites may dial a site too; its address tells it from a server, see `admit`.
    if uses != {wanted} and not (role in SITES and uses == {"clientAuth", "serverAuth"}):
        raise _unusable(f"the certificate of {role} {name!r} may be used for {sorted(uses)}, not for {wanted} alone")
    der = _der(found)
    return Peer(name, role, org, found.serial_number, hashlib.sha256(der).hexdigest(), project, plays)


def admit(
    certificate: bytes,
    *,
    project: str,
    roles: Iterable[str] = ROLES,
    name: str | None = None,
    plays: str | None = None,
    revoked: Callable[[int], bool] | None = None,
) -> Peer:
    """Return the owner of a certificate if that party may be at the other end here.

    Args:
        certificate: PEM or DER, as TLS has verified it.
        project: the only project whose parties are admitted.
        roles: the roles that are admitted.
        name: the only party expected, if it is one.
        plays: what the party must play in jobs, if that matters; nothing for a site with clients.
        revoked: tells whether a serial number is revoked.

    Raises:
        IdentityError: the certificate is not of the project, one of the roles and that name, or it is revoked.
    """
    peer = peer_of(certificate)
    if peer.project != project:
        raise _make_refusal(
            peer, f"it belongs to project {peer.project!r}, not {project!r}", f"use a kit of project {project!r}"
        )
    allowed = tuple(roles)
    if peer.role not in allowed:
        raise _make_refusal(
            peer,
            f"a certificate for role {peer.role!r} cannot act as {' or '.join(allowed)}",
            f"use the kit of a {' or '.join(allowed)}",
        )
    if name is not None and peer.name != name:
        raise _make_refusal(peer, f"{name!r} was meant", f"use the kit of {name!r}, or correct the address")
    if plays is not None and peer.plays != plays:
        raise _make_refusal(
            peer,
            f"its certificate says that it plays {peer.plays or 'nothing'!r}, and {plays or 'nothing'!r} was meant",
            f"use the kit of a {plays}" if plays else "use the kit of a site",
        )
    if revoked is not None and revoked(peer.serial):
        raise _make_refusal(
            peer,
            f"its certificate (serial {peer.serial:x}) was revoked",
            f"if it is to take part again, the project's provisioner makes a new kit: atoll provision PROJECT --renew {peer.name}",
        )
    return peer


def _parse_certificate(certificate: bytes) -> Certificate:
    need("cryptography", "net", "reading a certificate")
    from cryptography import x509

    try:
        if certificate.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(certificate)
        return x509.load_der_x509_certificate(certificate)
    except ValueError as error:
        raise _unusable(f"not a certificate: {error}") from error


def _der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def _optional(certificate: Certificate, short: str) -> str:
    """One value of the subject, or nothing."""
    from cryptography.x509.oid import NameOID

    kinds = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME}
    values = certificate.subject.get_attributes_for_oid(kinds[short])
    if len(values) > 1 or not all(isinstance(value.value, str) for value in values):
        raise _unusable(f"the certificate's subject has {len(values)} values for {short}, not one")
    return str(values[0].value) if values else ""


def _subject(certificate: Certificate, short: str) -> str:
    found = _optional(certificate, short)
    if not found:
        raise _unusable(f"the certificate's subject has 0 values for {short}, not one")
    return found


def _read_names(certificate: Certificate) -> tuple[str, str, str]:
    from cryptography import x509

    names = _extension(certificate, x509.SubjectAlternativeName)
    uris = [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)
    found = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None:
        raise _unusable(f"the certificate names {uris or 'no address'}, not exactly one atoll://project/role/name")
    return found[1], found[2], found[3]


def _uses(certificate: Certificate) -> set[str]:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    words = {Use.SERVER_AUTH: "serverAuth", Use.CLIENT_AUTH: "clientAuth"}
    found = _extension(certificate, x509.ExtendedKeyUsage)
    return set() if found is None else {words.get(use, use.dotted_string) for use in found}


def _extension(certificate: Certificate, kind: Any) -> Any:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension) as error:
        raise _unusable(f"the certificate's extensions cannot be read: {error}") from error


def _unusable(what: str) -> IdentityError:
    return IdentityError(what, where="certificate", remedy="use the certificate of a kit that `atoll provision` made")


def _make_refusal(peer: Peer, why: str, remedy: str) -> IdentityError:
    return IdentityError(f"{peer} is refused: {why}", where=f"certificate {peer.fingerprint[:16]}", remedy=remedy)


# ------------------------------------------------------------------ signatures with a party's own key, ECDSA (FIPS 186-5), and the chain from its certificate to the project's authority


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
        raise _make_signature_error(owner, "no authority of this project has issued its certificate")
    for whose, each in (("its certificate", found), ("its authority's certificate", issuer)):
        begin, end = each.not_valid_before_utc, each.not_valid_after_utc
        if not any(begin <= when <= end for when in (moment, then) if when is not None):
            raise _make_signature_error(
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


def _make_signature_error(owner: Peer, why: str) -> IdentityError:
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
