"""X.509 certificates of a project (RFC 5280), and the list of those that are revoked."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from ..identity import uri_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import (
        Certificate,
        CertificateBuilder,
        CertificateRevocationList,
        GeneralName,
        KeyUsage,
        Name,
    )

__all__ = [
    "BACKDATED",
    "RevocationList",
    "Revocations",
    "Subject",
    "certificates_in",
    "make_authority",
    "make_certificate",
    "make_list",
    "pem_of",
    "read_list",
]


# ------------------------------------------------------------------ x.509 certificates of a project (RFC 5280): ECDSA on P-256 with SHA-256, random serial numbers


BACKDATED = timedelta(hours=1)
"""Certificates are valid from a little before they are made, because clocks differ."""


@dataclass(frozen=True)
class Subject:
    """The party that a certificate is for.

    Attributes:
        project: the project.
        role: server, site, helper, admin or auditor.
        name: unique in the project.
        org: the organisation.
        hosts: DNS names and IP addresses that others dial: of a server, or of a site that takes direct links.
        plays: what a helper plays in jobs.
    """

    project: str
    role: str
    name: str
    org: str
    hosts: tuple[str, ...] = ()
    plays: str = ""


def make_authority(project: str, key: EllipticCurvePrivateKey, days: int, now: datetime) -> Certificate:
    """Make the authority's own certificate, which may sign certificates and revocation lists, but no other authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _dn(project, "Atoll certificate authority")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    return (
        _begin_certificate(name, name, key.public_key(), key.public_key(), now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def make_certificate(
    subject: Subject,
    public: EllipticCurvePublicKey,
    issuer: Certificate,
    key: EllipticCurvePrivateKey,
    days: int,
    now: datetime,
) -> Certificate:
    """Make a party's certificate: ``CN`` its name, ``O`` its organisation, its URI, and one extended key usage.

    A helper's certificate has what it plays as its ``OU``.

    A server's certificate also has its hosts and its own name, so that it can be verified at any address. A site with
    hosts accepts connections there, and so has both usages.

    Raises:
        IdentityError: the authority's own certificate has expired.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    # A certificate that outlives its issuer would fail in the handshake, where neither end can say why.
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    if until <= now:
        raise IdentityError(
            f"the authority's certificate expired on {issuer.not_valid_after_utc:%Y-%m-%d}",
            where="ca/ca.pem",
            remedy="make a new authority with `atoll provision PROJECT --rotate-ca`",
        )
    own = (subject.name,) if subject.role == "server" else ()
    names: list[GeneralName] = [
        x509.UniformResourceIdentifier(uri_of(subject.project, subject.role, subject.name)),
        *(_general(host) for host in dict.fromkeys((*own, *subject.hosts))),
    ]
    uses = [Use.SERVER_AUTH] if own else [Use.CLIENT_AUTH, *([Use.SERVER_AUTH] if subject.hosts else [])]
    return (
        _begin_certificate(
            _dn(subject.name, subject.org, subject.plays), issuer.subject, public, key.public_key(), now, until
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )


def _begin_certificate(
    subject: Name,
    issuer: Name,
    public: EllipticCurvePublicKey,
    signer: EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _dn(name: str, org: str, unit: str = "") -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    kinds = (NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, org), (NameOID.ORGANIZATIONAL_UNIT_NAME, unit)
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in kinds if value])


def _general(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def pem_of(*certificates: Certificate) -> bytes:
    """Return certificates as PEM, one after the other."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def certificates_in(pem: bytes, where: str) -> Sequence[Certificate]:
    """Return the certificates of a PEM file, at least one.

    Raises:
        IdentityError: there is none, or one cannot be read.
    """
    need("cryptography", "net", "reading certificates")
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise IdentityError(f"not a certificate: {error}", where=where, remedy="copy the kit again") from error


# ------------------------------------------------------------------ revoked certificates
#
# Revoked certificates: a list that the authority signs (RFC 5280, section 5) and servers read again when it changes.


_LOG = logging.getLogger("atoll.runtime.revocations")


@dataclass(frozen=True)
class RevocationList:
    """A verified list.

    Attributes:
        number: of this issue of the list; later issues have greater ones.
        serials: the certificates that are refused.
        made: when it was signed.
    """

    number: int
    serials: frozenset[int]
    made: datetime


class Revocations:
    """Tells whether a serial number is revoked; follows its file without a restart.

    A changed file counts if the authority signed it and its issue is not older than the one before. Until then the last
    good list counts, and the log says why: a damaged or deleted file readmits nobody.

    Args:
        path: the list, ``revoked.crl`` of a server's kit.
        ca: the file with the certificates of the authorities (PEM) whose signature counts. It is followed too: once the
            authority has a new key, that key signs the next list.

    Attributes:
        current: the list that counts.
        signed: the same list as the authority signed it, for parties that verify it themselves.

    Raises:
        IdentityError: the file is missing, damaged, or not signed by the authority.
    """

    def __init__(self, path: str | Path, ca: str | Path) -> None:
        self.path = Path(path)
        self._ca = Path(ca)
        self._seen = self._stamp()
        self.signed = self._bytes()
        self.current = self._read(self.signed)

    def __call__(self, serial: int) -> bool:
        """Tell whether the certificate with this serial number is refused."""
        self.latest()
        return serial in self.current.serials

    def latest(self) -> bytes:
        """Return the list that counts now, as the authority signed it; read the file again if it has changed."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._reload()
            self._seen = stamp
        return self.signed

    def _reload(self) -> None:
        try:
            signed = self._bytes()
            found = self._read(signed)
        except IdentityError as error:
            _LOG.error("revocation list ignored, the last good one (issue %d) counts: %s", self.current.number, error)
            return
        if found.number < self.current.number:
            _LOG.error(
                "revocation list ignored: %s is issue %d, and issue %d was read before. Remedy: copy the newest one",
                self.path,
                found.number,
                self.current.number,
            )
            return
        self.current, self.signed = found, signed
        _LOG.info("revocation list, issue %d: %d certificates", found.number, len(found.serials))

    def _read(self, signed: bytes) -> RevocationList:
        return read_list(signed, _bytes_of(self._ca, "the authority's certificates"), str(self.path))

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return _stamp(self.path), _stamp(self._ca)

    def _bytes(self) -> bytes:
        return _bytes_of(self.path, "the revocation list")


def _bytes_of(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(f"{what} cannot be read: {error.strerror}", str(path)) from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def make_list(
    serials: Iterable[tuple[int, datetime]],
    number: int,
    issuer: Certificate,
    key: EllipticCurvePrivateKey,
    now: datetime,
) -> bytes:
    """Sign a list of (serial number, when it was revoked); PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    # Servers need no new issue while nothing is revoked, so the next one is due when the authority expires.
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(now)
    made = made.next_update(issuer.not_valid_after_utc).add_extension(x509.CRLNumber(number), critical=False)
    own = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    made = made.add_extension(own, critical=False)
    for serial, when in serials:
        made = made.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        )
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_list(pem: bytes, ca: bytes, where: str) -> RevocationList:
    """Read a list and verify its signature.

    Raises:
        IdentityError: it is damaged, or not signed by one of the authorities.
    """
    need("cryptography", "net", "reading a revocation list")
    from cryptography import x509

    try:
        found = x509.load_pem_x509_crl(pem)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        serials = frozenset(entry.serial_number for entry in found)
    except (ValueError, x509.ExtensionNotFound, x509.InvalidVersion) as error:
        raise _wrong(f"the revocation list is damaged: {_first(error)}", where) from error
    if not any(_signed(found, authority) for authority in certificates_in(ca, where)):
        raise _wrong("the revocation list is not signed by the project's authority", where)
    return RevocationList(number, serials, found.last_update_utc)


def _signed(found: CertificateRevocationList, authority: Certificate) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    public = authority.public_key()
    return isinstance(public, EllipticCurvePublicKey) and found.is_signature_valid(public)


def _first(error: Exception) -> str:
    return str(error).partition(". ")[0].partition(" {")[0]


def _wrong(what: str, where: str) -> IdentityError:
    return IdentityError(
        what, where=where, remedy="copy revoked.crl from the provisioner's folder of this server again"
    )
