"""The kit itself: files, key, certificate, dates, revocation list; and whose the authority is.

Parties seal letters for keys that the authority's certificates vouch for. A server with the authority's key could make a certificate for any party, and read all letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import AtollError, IdentityError
from atoll.runtime.identity import peer_of
from atoll.runtime.provision.certificates import certificates_in
from atoll.runtime.provision.keys import load_key, public_pem
from atoll.runtime.provision.kit import Kit
from atoll.runtime.provision.revocations import read_list

from .finding import Finding, Step, attempt

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["WARN", "authorities_of", "check_authority", "check_paper", "find_fault"]

WARN = timedelta(days=30)
"""A certificate that ends sooner gets a warning."""


def check_paper(kit: Kit, now: datetime | None = None) -> Step:
    """Check a kit without the network."""
    yield attempt("files", lambda: _files(kit))
    yield attempt("key", lambda: _key(kit))
    yield attempt("certificate", lambda: str(kit.peer()))
    yield attempt("authority", lambda: describe_authority(kit))
    yield attempt("validity", lambda: _valid(kit, datetime.now(UTC) if now is None else now))
    if kit.role == "server":
        yield attempt("server names", lambda: _hosts(kit))
    if kit.role == "server" or kit.revoked_file.is_file():
        yield attempt("revocation list", lambda: _check_revoked(kit))


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


def authorities_of(kit: Kit) -> Sequence[Certificate]:
    """Return the certificates of the authorities that the party trusts."""
    return certificates_in(kit.bytes_of("ca.pem"), str(kit.folder / "ca.pem"))


def describe_authority(kit: Kit) -> str:
    """Return who signed the party's certificate, with the fingerprint that parties compare.

    Raises:
        IdentityError: no authority in ``ca.pem`` did.
    """
    from cryptography.exceptions import InvalidSignature

    own, known = certificate_of(kit), authorities_of(kit)
    for authority in known:
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        others = "".join(f"; ca.pem also trusts {_name_authority(other)}" for other in known if other is not authority)
        said = f"{_name_authority(authority)} signed the certificate; its own ends on {authority.not_valid_after_utc:%Y-%m-%d}"
        return f"{said}{others}. Compare the fingerprint with other sites by telephone"
    raise IdentityError(
        f"the certificate of {kit.name!r} is not signed by the authority in ca.pem",
        where=str(kit.folder),
        remedy="copy the kit again, whole: ca.pem and certificate.pem belong together",
    )


def _name_authority(authority: Certificate) -> str:
    """Return an authority's name and its fingerprint, as ``openssl x509 -fingerprint -sha256`` prints it."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return f"{authority.subject.rfc4514_string()}, SHA-256 {authority.fingerprint(SHA256()).hex(':').upper()},"


_APART = "let the provisioner, who is not the server's operator, keep the authority's key offline"


def find_fault(certificate: Certificate, authorities: Sequence[Certificate]) -> str:
    """Return why a server's certificate lets the server certify keys; nothing if it does not."""
    from cryptography import x509

    with suppress(x509.ExtensionNotFound):
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "its certificate is an authority's"
    with suppress(x509.ExtensionNotFound):
        if certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign:
            return "its certificate may sign certificates"
    own = _public(certificate)
    if any(own == _public(authority) for authority in authorities):
        return "its key is the authority's"
    return ""


def check_authority(kit: Kit, work: Path) -> Finding:
    """Check that a server cannot certify keys: its certificate is no authority's, and the authority's key is neither in its kit nor in its working folder, nor beside the kit."""
    node, step = f"server {kit.name!r}", "authority's key"
    try:
        known = authorities_of(kit)
        fault = find_fault(certificate_of(kit), known)
    except AtollError as error:
        return Finding.skip_step(step, f"{node}: not compared: {error.what}")
    if fault:
        renew = f"atoll provision PROJECT --rotate-ca, then --renew {kit.name}"
        return Finding.problem(step, f"{node}: {fault}", f"{_APART}, and make both anew: {renew}")
    public, near = {_public(each) for each in known}, kit.folder.resolve().parent
    for folder in dict.fromkeys(path.resolve() for path in (kit.folder, near, work, work / kit.name)):
        for file in (*_keys_in(folder, public), *_keys_in(folder / "ca", public)):
            said = f"{node}: the authority's key is here: {file}"
            if folder == near:
                return Finding.warning(step, f"{said}, beside the kit", f"{_APART}; give the server its kit alone")
            rotate = "since this machine has seen it, make a new one: atoll provision PROJECT --rotate-ca"
            return Finding.problem(step, said, f"{_APART}; {rotate}")
    return Finding.ok(step, f"{node}: is neither in its kit, nor beside it, nor in {work}")


def _keys_in(folder: Path, public: set[bytes], most: int = 1 << 14) -> Iterator[Path]:
    """Yield files of a folder that hold a private key of an authority. One that is encrypted is known by its name alone."""
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            with suppress(OSError, IdentityError):
                if (
                    not file.is_file()
                    or file.stat().st_size > most
                    or b"PRIVATE KEY-----" not in (pem := file.read_bytes())
                ):
                    continue
                if b"ENCRYPTED" in pem.partition(b"\n")[0]:
                    if file.name.startswith("ca-key"):
                        yield file
                elif public_pem(load_key(pem, None, str(file)).public_key()) in public:
                    yield file


def _public(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


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


def _check_revoked(kit: Kit) -> str:
    found = read_list(kit.bytes_of("revoked.crl"), kit.bytes_of("ca.pem"), str(kit.revoked_file))
    if peer_of(kit.bytes_of("certificate.pem")).serial in found.serials:
        raise IdentityError(
            f"the certificate of {kit.name!r} itself is revoked",
            where=str(kit.revoked_file),
            remedy=f"ask the provisioner for a new one: atoll provision PROJECT --renew {kit.name}",
        )
    return f"issue {found.number} of {found.made:%Y-%m-%d}, signed by the authority: {len(found.serials)} certificates"
