"""X.509 certificates of a project (RFC 5280): ECDSA on P-256 with SHA-256, random serial numbers."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from atoll.core.errors import IdentityError
from atoll.core.extras import need
from atoll.runtime.identity import uri_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, KeyUsage, Name

__all__ = ["BACKDATED", "Subject", "certificates_in", "make_authority", "make_certificate", "pem_of"]

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
