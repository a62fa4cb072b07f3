"""The authority's ledger: every certificate that it ever issued or revoked, one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import append_bytes

__all__ = ["IssueLedger", "LedgerEntry", "moment"]


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
