"""Revoked certificates: a list that the authority signs (RFC 5280, section 5) and servers read again when it changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from .certificates import certificates_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateRevocationList

__all__ = ["RevocationList", "Revocations", "make_list", "read_list"]

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
