"""The certificate authority of a project: the one key that creates parties, and the ledger of what it issued and revoked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import append_bytes

from .certificates import Subject, certificates_in, make_authority, make_certificate, make_list, pem_of, read_list
from .keys import CA_VARIABLE, fits, load_key, make_folder, make_key, seal_key, write_kit_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

__all__ = ["Authority", "IssueLedger", "LedgerEntry", "moment"]


# ------------------------------------------------------------------ the authority's ledger: every certificate that it ever issued or revoked, one JSON object per line


@dataclass(frozen=True)
class LedgerEntry:
    """One line.

    Attributes:
        event: issued (the first), renewed, or revoked.
        name: the party.
        role: its role.
        org: its organisation.
        serial: of the certificate, in hex.
        not_before: its first moment, ISO 8601 in UTC.
        not_after: its last moment.
        at: when this line was written.
        plays: a helper's part in jobs.
    """

    event: Literal["issued", "renewed", "revoked"]
    name: str
    role: str
    org: str
    serial: str
    not_before: str
    not_after: str
    at: str
    plays: str = ""


class IssueLedger:
    """``issued.jsonl``.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = list(_read(path))

    def add(self, entry: LedgerEntry) -> None:
        """Write a line.

        Raises:
            CheckpointError: the disk is full.
        """
        append_bytes(self.path, json.dumps(dataclasses.asdict(entry)).encode() + b"\n")
        self._entries.append(entry)

    @property
    def entries(self) -> list[LedgerEntry]:
        """Return all entries."""
        return list(self._entries)

    @property
    def names(self) -> list[str]:
        """Return the names of everyone who was ever issued a certificate."""
        return list(dict.fromkeys(entry.name for entry in self._entries))

    def latest(self, name: str) -> LedgerEntry | None:
        """Return the newest certificate of a party."""
        found = [entry for entry in self._entries if entry.name == name and entry.event != "revoked"]
        return found[-1] if found else None

    def list_revoked(self) -> dict[str, LedgerEntry]:
        """Return serial -> entry of every revocation."""
        return {entry.serial: entry for entry in self._entries if entry.event == "revoked"}

    def valid(self, name: str) -> list[LedgerEntry]:
        """Return the certificates of a party that are not revoked, oldest first."""
        gone = self.list_revoked()
        own = (entry for entry in self._entries if entry.name == name and entry.event != "revoked")
        return [entry for entry in own if entry.serial not in gone]


def moment(time: datetime) -> str:
    """Return a time as the ledger writes it."""
    return time.isoformat(timespec="seconds")


def _read(path: Path) -> Iterator[LedgerEntry]:
    if not path.exists():
        return
    for number, line in enumerate(_lines(path), 1):
        try:
            yield LedgerEntry(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"the ledger of certificates is damaged: {error}",
                where=f"{path}, line {number}",
                remedy="restore the ca folder from its backup",
            ) from error


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the ledger of certificates cannot be read: {error}", where=str(path), remedy="restore the ca folder"
        ) from error


# ------------------------------------------------------------------ the certificate authority of a project: the one key that creates parties


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
        write_kit_file(folder / "ca-key.pem", seal_key(key, secret), private=True)
        write_kit_file(folder / "revoked.crl", make_list([], 1, own, key, now))
        write_kit_file(folder / "issued.jsonl", b"")
        # The certificate is written last: without it there is no authority yet, and the next try starts afresh.
        write_kit_file(folder / "ca.pem", pem_of(own))
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
        write_kit_file(self.folder / "certificates" / f"{made.serial_number:x}.pem", text)
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
        write_kit_file(self.folder / "revoked.crl", made)

    def rotate(self, days: int, now: datetime) -> None:
        """Make a new key. Certificates of the old one stay valid: the bundle holds both, the new one first."""
        secret = self._passphrase()
        self._unlock_key()  # a person who cannot open the old key may not replace it
        key = make_key()
        own = make_authority(self.project, key, days, now)
        write_kit_file(
            self.folder / f"ca-key-{self.certificate.serial_number:x}.pem", self._bytes("ca-key.pem"), private=True
        )
        write_kit_file(self.folder / "ca-key.pem", seal_key(key, secret), private=True)
        before = self.bundle  # even an expired authority may have signed the last list
        self.certificates = [own, *(c for c in self.certificates if c.not_valid_after_utc > now)]
        self.bundle, self._key = pem_of(*self.certificates), key
        write_kit_file(self.folder / "ca.pem", self.bundle)
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
