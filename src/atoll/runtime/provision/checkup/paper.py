"""The kit itself: files, key, certificate, dates, revocation list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from atoll.core.errors import IdentityError
from atoll.runtime.identity import peer_of
from atoll.runtime.provision.certificates import certificates_in
from atoll.runtime.provision.kit import Kit
from atoll.runtime.provision.revocations import read_list

from .finding import Step, attempt

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["WARN", "check_paper"]

WARN = timedelta(days=30)
"""A certificate that ends sooner gets a warning."""


def check_paper(kit: Kit, now: datetime | None = None) -> Step:
    """Check a kit without the network."""
    yield attempt("files", lambda: _files(kit))
    yield attempt("key", lambda: _key(kit))
    yield attempt("certificate", lambda: str(kit.peer()))
    yield attempt("authority", lambda: _signed(kit))
    yield attempt("validity", lambda: _valid(kit, datetime.now(UTC) if now is None else now))
    if kit.role == "server":
        yield attempt("server names", lambda: _hosts(kit))
    if kit.role == "server" or kit.revoked_file.is_file():
        yield attempt("revocation list", lambda: _revoked(kit))


def certificate_of(kit: Kit) -> Certificate:
    """Return the party's certificate."""
    return certificates_in(kit.bytes_of("certificate.pem"), str(kit.folder / "certificate.pem"))[0]


def _files(kit: Kit) -> str:
    names = ["ca.pem", "certificate.pem", "key.pem", *(["revoked.crl"] if kit.role == "server" else [])]
    for name in names:
        kit.bytes_of(name)
    return f"{', '.join(('kit.yaml', *names))} of {kit.role} {kit.name!r}, project {kit.project!r}"


def _key(kit: Kit) -> str:
    kit.credentials()
    at_rest = "encrypted" if b"ENCRYPTED" in kit.bytes_of("key.pem")[:64] else "not encrypted"
    return f"belongs to the certificate, readable by its owner only, {at_rest} at rest"


def _signed(kit: Kit) -> str:
    from cryptography.exceptions import InvalidSignature

    own = certificate_of(kit)
    for authority in certificates_in(kit.bytes_of("ca.pem"), str(kit.folder / "ca.pem")):
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return f"signed the certificate; its own ends on {authority.not_valid_after_utc:%Y-%m-%d}"
    raise IdentityError(
        f"the certificate of {kit.name!r} is not signed by the authority in ca.pem",
        where=str(kit.folder),
        remedy="copy the kit again, whole: ca.pem and certificate.pem belong together",
    )


def _valid(kit: Kit, now: datetime) -> str:
    own = certificate_of(kit)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    remedy = f"ask the provisioner for a new certificate: atoll provision PROJECT --renew {kit.name}"
    if now < first:
        raise IdentityError(
            f"the certificate of {kit.name!r} is valid from {first:%Y-%m-%d %H:%M} UTC, and this clock says {now:%Y-%m-%d %H:%M}",
            where="certificate.pem",
            remedy="set this machine's clock",
        )
    if now > last:
        raise IdentityError(
            f"the certificate of {kit.name!r} expired on {last:%Y-%m-%d %H:%M} UTC ({(now - last).days} days ago)",
            where="certificate.pem",
            remedy=f"{remedy}; if that date is to come, set this machine's clock",
        )
    soon = f"; renew it soon ({remedy})" if last - now < WARN else ""
    return f"{(last - now).days} days left, until {last:%Y-%m-%d}{soon}"


def _hosts(kit: Kit) -> str:
    from cryptography import x509

    names = certificate_of(kit).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    there = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    missing = [host for host in kit.server.hosts if host not in there]
    if missing:
        raise IdentityError(
            f"the certificate of {kit.name!r} does not name {', '.join(missing)}",
            where="certificate.pem",
            remedy=f"put them into project.yaml and renew: atoll provision PROJECT --renew {kit.name}",
        )
    return f"the certificate names {', '.join(there)}"


def _revoked(kit: Kit) -> str:
    found = read_list(kit.bytes_of("revoked.crl"), kit.bytes_of("ca.pem"), str(kit.revoked_file))
    if peer_of(kit.bytes_of("certificate.pem")).serial in found.serials:
        raise IdentityError(
            f"the certificate of {kit.name!r} itself is revoked",
            where=str(kit.revoked_file),
            remedy=f"ask the provisioner for a new one: atoll provision PROJECT --renew {kit.name}",
        )
    return f"issue {found.number} of {found.made:%Y-%m-%d}, signed by the authority: {len(found.serials)} certificates"
