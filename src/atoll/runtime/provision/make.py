"""Provisioning: from ``project.yaml`` to one folder for each party. Running it again changes no existing kit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need
from atoll.runtime.identity import SITES

from .authority import Authority
from .files import make_folder, write
from .kits import kit_files, newer, renew_kit
from .project import ProjectConfig
from .sites import site_list

__all__ = ["Provisioned", "provision"]

Passphrase = Callable[[str], bytes]


@dataclass
class Provisioned:
    """What was done.

    Attributes:
        folder: where the kits are.
        made: names of new kits.
        kept: existing kits, left unchanged.
        handed: kits that were made before and are no longer here.
        renewed: kits with a new certificate.
        revoked: name -> serial numbers that are refused from now on.
        notes: what the operator must know or do.
    """

    folder: Path
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    revoked: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def provision(
    project: ProjectConfig,
    out: str | Path,
    *,
    renew: Iterable[str] = (),
    revoke: Iterable[str] = (),
    same_key: bool = False,
    rotate: bool = False,
    passphrase: Passphrase | None = None,
    ca_passphrase: Callable[[], bytes | None] = lambda: None,
    now: datetime | None = None,
) -> Provisioned:
    """Make what is missing: the authority, and a kit for every party that never had one.

    Args:
        project: who takes part.
        out: folder of the kits, and of the authority in ``ca``.
        renew: parties that get a new certificate, and a new key unless ``same_key``.
        revoke: parties whose present certificates are refused from now on; done before renewing.
        same_key: renew certificates only.
        rotate: make a new key of the authority first; the old one stays trusted.
        passphrase: gives the passphrase of a party's key; without it, keys are not encrypted.
        ca_passphrase: gives the passphrase of the authority's key, or nothing.
        now: the time; by default the clock's.

    Raises:
        ConfigError: the folder is another project's, a name is unknown, or a party changed its role.
        IdentityError: a key or certificate there cannot be used.
    """
    need("cryptography", "net", "atoll provision")
    time = datetime.now(UTC) if now is None else now
    folder = make_folder(Path(out))
    if (folder / "ca" / "ca.pem").exists():
        authority = Authority(folder / "ca", project.project, ca_passphrase)
    else:
        authority = Authority.create(folder / "ca", project.project, project.validity.ca, ca_passphrase, time)
    work = _Work(project, folder, authority, passphrase, time, Provisioned(folder))
    renew, revoke = list(dict.fromkeys(renew)), list(dict.fromkeys(revoke))
    work.check(renew, revoke)
    if rotate:
        work.rotate()
    work.revoke(revoke)
    work.renew(renew, same_key)
    work.make()
    work.list_sites()
    return work.done


@dataclass
class _Work:
    project: ProjectConfig
    folder: Path
    authority: Authority
    passphrase: Passphrase | None
    now: datetime
    done: Provisioned

    def check(self, renew: list[str], revoke: list[str]) -> None:
        """Check the request before anything is written."""
        parties, ledger = self.project.parties(), self.authority.ledger
        for option, names, known in (("--renew", renew, list(parties)), ("--revoke", revoke, ledger.names)):
            for name in names:
                if name not in known:
                    raise ConfigError(
                        f"{name!r} is not the name of a party here.{nearest(name, known)}",
                        where=option,
                        remedy=f"give one of: {', '.join(known) or 'no names yet'}",
                    )
        for name, (role, org) in parties.items():
            before, plays = ledger.latest(name), self.project.plays(name)
            if before is not None and (before.role, before.org, before.plays) != (role, org, plays):
                was, now = _standing(before.role, before.plays), _standing(role, plays)
                raise ConfigError(
                    f"{name!r} was issued a kit as {was} of {before.org!r}, but is now {now} of {org!r}",
                    where="project.yaml",
                    remedy=f"give the new party a new name, and --revoke {name} to remove the old one",
                )

    def rotate(self) -> None:
        """Make a new authority; every party's bundle holds both."""
        self.authority.rotate(self.project.validity.ca, self.now)
        for name in self.project.parties():
            if (self.folder / name).is_dir():
                write(self.folder / name / "ca.pem", self.authority.bundle)
        self._put_list()
        self.done.notes.append(
            "the authority has a new key: give every party the new ca.pem of its kit, restart them, then --renew each kit"
        )

    def revoke(self, names: list[str]) -> None:
        """Put the certificates on the list, and the list into the kits of servers and sites."""
        for name in names:
            self.done.revoked[name] = self.authority.revoke(name, self.now)
        if names:
            servers = ", ".join(server.name for server in self.project.servers)
            self.done.notes.append(
                f"copy revoked.crl from the kit of {servers} to the running server: it is read at once, and sites get it from there"
            )
        if names or self._list_is_behind():
            self._put_list()

    def renew(self, names: list[str], same_key: bool) -> None:
        """Make new certificates for parties that had one."""
        for name in names:
            if self.authority.ledger.latest(name) is None:
                continue  # never had one: `make` creates its first
            self.done.notes += renew_kit(
                self.project, name, self.folder / name, self.authority, self._seal, same_key, self.now
            )
            self.done.renewed.append(name)

    def make(self) -> None:
        """Make kits for parties that never had one."""
        for name in self.project.parties():
            if name in self.done.renewed:
                continue
            # A temporary folder is left over from a try that was cut off: its kit was never finished.
            if self.authority.ledger.latest(name) is None or self._aside(name).is_dir():
                self._make(name)
            elif (self.folder / name).is_dir():
                self.done.kept.append(name)
                self.done.notes += newer(self.project, name, self.folder / name, self.authority)
            else:
                self.done.handed.append(name)
        for name in self.authority.ledger.names:
            if name not in self.project.parties() and self.authority.ledger.valid(name):
                self.done.notes.append(
                    f"{name} is no longer in the project, but its certificate is still valid: --revoke {name}"
                )

    def list_sites(self) -> None:
        """Write the list of sites for the servers; no other party needs it."""
        content = site_list(self.project, self.authority.ledger)
        servers = [server.name for server in self.project.servers if (self.folder / server.name).is_dir()]
        stale = [name for name in servers if _bytes_in(self.folder / name / "project-sites.txt") != content]
        for name in stale:
            write(self.folder / name / "project-sites.txt", content)
        older = [name for name in stale if name not in (*self.done.made, *self.done.renewed)]
        if older:
            self.done.notes.append(
                f"copy project-sites.txt from the kit of {', '.join(older)} to the running server: it is read at once"
            )

    def _make(self, name: str) -> None:
        target, aside = self.folder / name, self._aside(name)
        if target.exists():
            raise ConfigError(
                "there is a folder of that name which was not made here", where=str(target), remedy="move it away"
            )
        secret = self._seal(name)  # may be refused, so before anything exists
        shutil.rmtree(aside, ignore_errors=True)
        make_folder(aside)
        for file, content in kit_files(self.project, name, self.authority, lambda _: secret, self.now).items():
            write(aside / file, content, private=file == "key.pem")
        aside.rename(target)
        self.done.made.append(name)

    def _aside(self, name: str) -> Path:
        return self.folder / f".{name}.tmp"

    def _seal(self, name: str) -> bytes | None:
        return None if self.passphrase is None else self.passphrase(name)

    def _list_is_behind(self) -> bool:
        current = self.authority.revocation_list
        kits = [self.folder / server.name / "revoked.crl" for server in self.project.servers]
        return any(path.exists() and path.read_bytes() != current for path in kits)

    def _put_list(self) -> None:
        for name, (role, _) in self.project.parties().items():
            if role in ("server", *SITES) and (self.folder / name).is_dir():
                write(self.folder / name / "revoked.crl", self.authority.revocation_list)


def _standing(role: str, plays: str) -> str:
    return f"{role} ({plays})" if plays else role


def _bytes_in(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
