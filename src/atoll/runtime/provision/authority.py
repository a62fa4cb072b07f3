"""The certificate authority of a project: the one key that creates parties."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import ConfigError

from .certificates import Subject, certificates_in, make_authority, make_certificate, pem_of
from .files import make_folder, write
from .keys import fits, load_key, make_key, seal_key
from .ledger import IssueLedger, LedgerEntry, moment
from .passphrase import CA_VARIABLE
from .revocations import make_list, read_list

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

__all__ = ["Authority"]

Ask = Callable[[], bytes | None]


class Authority:
    """The ``ca`` folder: ``ca.pem``, ``ca-key.pem``, ``issued.jsonl``, ``revoked.crl`` and every certificate it issued.

    It reads the key, and asks for its passphrase, only to sign something.

    Args:
        folder: the folder.
        passphrase: gives the passphrase of the key, if it has one.
        project: the project that it must belong to.

    Raises:
        ConfigError: it is the authority of another project, or a file is missing.
    """

    def __init__(self, folder: Path, project: str, passphrase: Ask) -> None:
        self.folder = folder
        self.project = project
        self._passphrase = passphrase
        self._key: EllipticCurvePrivateKey | None = None
        self.ledger = IssueLedger(folder / "issued.jsonl")
        self.bundle = self._bytes("ca.pem")
        self.certificates = list(certificates_in(self.bundle, str(folder / "ca.pem")))
        named = self.certificates[0].subject.rfc4514_string().partition("CN=")[2].partition(",")[0]
        if named != project:
            raise ConfigError(
                f"project={project!r}, but the authority there is of project {named!r}",
                where=str(folder),
                remedy="give every project a folder of its own with --out",
            )

    @classmethod
    def create(cls, folder: Path, project: str, days: int, passphrase: Ask, now: datetime) -> Authority:
        """Make an authority with an empty revocation list."""
        secret = passphrase()
        key = make_key()
        own = make_authority(project, key, days, now)
        make_folder(folder)
        write(folder / "ca-key.pem", seal_key(key, secret), private=True)
        write(folder / "revoked.crl", make_list([], 1, own, key, now))
        write(folder / "issued.jsonl", b"")
        # The certificate is written last: without it there is no authority yet, and the next try starts afresh.
        write(folder / "ca.pem", pem_of(own))
        return cls(folder, project, lambda: secret)

    @property
    def certificate(self) -> Certificate:
        """Return the newest certificate of the authority, which signs."""
        return self.certificates[0]

    @property
    def revocation_list(self) -> bytes:
        """Return the signed list of revoked certificates."""
        return self._bytes("revoked.crl")

    def issue(self, subject: Subject, public: EllipticCurvePublicKey, days: int, now: datetime) -> bytes:
        """Sign a certificate, keep a copy and enter it in the ledger.

        Returns:
            The certificate, PEM.
        """
        made = make_certificate(subject, public, self.certificate, self._unlock_key(), days, now)
        text = pem_of(made)
        make_folder(self.folder / "certificates")
        write(self.folder / "certificates" / f"{made.serial_number:x}.pem", text)
        event = "issued" if self.ledger.latest(subject.name) is None else "renewed"
        dates = moment(made.not_valid_before_utc), moment(made.not_valid_after_utc), moment(now)
        who = subject.name, subject.role, subject.org
        self.ledger.add(LedgerEntry(event, *who, f"{made.serial_number:x}", *dates, subject.plays))  # type: ignore[arg-type]
        return text

    def read_issued(self, entry: LedgerEntry) -> bytes:
        """Return the copy of an issued certificate, PEM."""
        return self._bytes(f"certificates/{entry.serial}.pem")

    def revoke(self, name: str, now: datetime) -> list[str]:
        """Revoke every certificate of a party and sign a new list.

        Returns:
            The serial numbers, in hex; none if all were revoked before.
        """
        entries = self.ledger.valid(name)
        for entry in entries:
            values = {**vars(entry), "event": "revoked", "at": moment(now)}
            self.ledger.add(LedgerEntry(**values))
        # Signed even if nothing is new: the last try may have ended between the ledger and the list.
        self.sign_list(now)
        return [entry.serial for entry in entries]

    def sign_list(self, now: datetime, before: bytes | None = None) -> None:
        """Sign a new issue of the revocation list from the ledger.

        Args:
            now: the time.
            before: certificates of authorities that may have signed the last issue (PEM); by default the bundle's.
        """
        trusted = self.bundle if before is None else before
        last = read_list(self.revocation_list, trusted, str(self.folder / "revoked.crl"))
        gone = [(int(serial, 16), datetime.fromisoformat(e.at)) for serial, e in self.ledger.list_revoked().items()]
        made = make_list(gone, last.number + 1, self.certificate, self._unlock_key(), now)
        write(self.folder / "revoked.crl", made)

    def rotate(self, days: int, now: datetime) -> None:
        """Make a new key. Certificates of the old one stay valid: the bundle holds both, the new one first."""
        secret = self._passphrase()
        self._unlock_key()  # a person who cannot open the old key may not replace it
        key = make_key()
        own = make_authority(self.project, key, days, now)
        write(self.folder / f"ca-key-{self.certificate.serial_number:x}.pem", self._bytes("ca-key.pem"), private=True)
        write(self.folder / "ca-key.pem", seal_key(key, secret), private=True)
        before = self.bundle  # even an expired authority may have signed the last list
        self.certificates = [own, *(c for c in self.certificates if c.not_valid_after_utc > now)]
        self.bundle, self._key = pem_of(*self.certificates), key
        write(self.folder / "ca.pem", self.bundle)
        self.sign_list(now, before)

    def _unlock_key(self) -> EllipticCurvePrivateKey:
        if self._key is None:
            path = str(self.folder / "ca-key.pem")
            pem = self._bytes("ca-key.pem")
            key = load_key(pem, self._passphrase() if b"ENCRYPTED" in pem else None, path, CA_VARIABLE)
            if not fits(pem_of(self.certificate), seal_key(key)):
                raise ConfigError(
                    "the authority's key and certificate do not belong together",
                    where=path,
                    remedy="restore the ca folder from its backup",
                )
            self._key = key
        return self._key

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the authority lacks {name}: {error.strerror}",
                where=str(self.folder),
                remedy="restore the ca folder from its backup, or start over with another --out",
            ) from error
