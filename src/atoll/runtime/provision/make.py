"""Provisioning: from ``project.yaml`` to one folder for each party. Running it again changes no existing kit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need
from atoll.runs import yaml

from ..identity import HELPER, SITES
from .authority import Authority
from .certificates import Subject
from .keys import make_folder, make_key, seal_key, write_kit_file
from .kit import KitConfig
from .project import ProjectConfig, site_list

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["Provisioned", "kit_files", "newer", "provision", "readme", "renew_kit"]


# ------------------------------------------------------------------ the README of a kit: who it is for, and the one command that starts it


_COMMAND = {
    "server": "atoll server {folder}",
    "site": "atoll site {folder} --data FOLDER",
    "helper": "atoll site {folder}",
    "admin": "atoll submit job.yaml --kit {folder}",
    "auditor": "atoll jobs --kit {folder}",
    "analyst": "atoll sql --kit {folder}",
}
_DOES = {
    "server": "It waits for sites and admins on port {port}; no other port is opened.",
    "site": "It dials out to the server and opens no port. FOLDER holds the data, which does not leave this machine.",
    "helper": "It dials out to the server and opens no port. It plays {plays} in jobs that need one, and holds no data of clients.",
    "admin": "It dials out to the server. Jobs that you submit run at the sites that agree to them.",
    "auditor": "It dials out to the server. You see jobs, logs and results, and can change nothing.",
    "analyst": "It dials out to the server. You ask SQL, which the sites answer by their policies, and see your own answers.",
}


def readme(config: KitConfig, until: str) -> bytes:
    """Return the text of ``README.txt``.

    Args:
        config: the kit's settings.
        until: the certificate's last day.
    """
    where = ", ".join(f"{host}:{server.port}" for server in config.servers for host in server.hosts)
    lines = [
        f"Startup kit of {config.plays or config.role} {config.name} ({config.org}) for project {config.project}",
        "",
        f'Install:   pip install "atoll[{"net" if config.transport == "tcp" else "net,grpc"}]"',
        f"Check:     atoll doctor {config.name}",
        f"Start:     {_COMMAND[config.role].format(folder=config.name)}",
        "",
        _DOES[config.role].format(port=config.servers[0].port, plays=f"the {config.plays}"),
        f"Server:    {where}",
        f"Valid to:  {until}",
        "",
        "key.pem proves that you are who this kit says. Do not copy, mail or share it; keep it readable by you alone (chmod 600 key.pem).",
        "If it may have been seen, tell the project's provisioner, who revokes this kit and makes you a new one.",
    ]
    return "\n".join([*lines, ""]).encode()


# ------------------------------------------------------------------ the files of one party's kit: new or renewed


Seal = Callable[[str], bytes | None]


def kit_files(project: ProjectConfig, name: str, authority: Authority, seal: Seal, now: datetime) -> dict[str, bytes]:
    """Return file name -> content of a new kit, with a new key."""
    secret, key = seal(name), make_key()
    certificate = authority.issue(_subject(project, name), key.public_key(), project.validity.kits, now)
    return {**_public_files(project, name, authority, certificate), "key.pem": seal_key(key, secret)}


def renew_kit(
    project: ProjectConfig, name: str, folder: Path, authority: Authority, seal: Seal, same_key: bool, now: datetime
) -> list[str]:
    """Make a new certificate for a party that had one, and a new key unless ``same_key``.

    With the same key, it writes only public files: the provisioner needs neither the kit nor its key.

    Returns:
        What the operator must do.
    """
    make_folder(folder)
    if not same_key:
        files = kit_files(project, name, authority, _as_sealed(folder, seal), now)
        write_kit_file(folder / "key.pem", files.pop("key.pem"), private=True)
        todo = f"give {name} the new kit"
    else:
        public = _public_key(authority, name)
        certificate = authority.issue(_subject(project, name), public, project.validity.kits, now)
        files = _public_files(project, name, authority, certificate)
        todo = f"give {name} the new certificate.pem; its key stays"
    for file, content in files.items():
        write_kit_file(folder / file, content)
    return [f"{todo}, and restart it; the previous certificate stays valid until its end unless you revoke it"]


def _as_sealed(folder: Path, seal: Seal) -> Seal:
    """Return the passphrase rule of a new key: an encrypted key is not followed by a plain one."""

    def check_sealed(name: str) -> bytes | None:
        secret, before = seal(name), folder / "key.pem"
        if secret is None and before.exists() and b"ENCRYPTED" in before.read_bytes()[:64]:
            raise ConfigError(
                f"the key of {name!r} is encrypted, and its new one would not be",
                where=str(before),
                remedy="add --encrypt, or delete the old key.pem first",
            )
        return secret

    return check_sealed


def newer(project: ProjectConfig, name: str, folder: Path, authority: Authority) -> list[str]:
    """Return what is out of date in a kit that is left unchanged."""
    said = []
    try:
        there = (folder / "kit.yaml").read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the kit of {name!r} lacks kit.yaml", where=str(folder), remedy=f"make it again with --renew {name}"
        ) from error
    if there != _settings(project, name):
        said.append(f"{name}'s kit no longer matches project.yaml; renew it with --renew {name}")
    if not authority.ledger.valid(name):
        said.append(
            f"{name}'s certificate was revoked: delete {name} from project.yaml, or take it back in with --renew {name}"
        )
    return said


def _public_files(project: ProjectConfig, name: str, authority: Authority, certificate: bytes) -> dict[str, bytes]:
    latest = authority.ledger.latest(name)
    until = latest.not_after[:10] if latest else ""
    files = {
        "kit.yaml": _settings(project, name),
        "ca.pem": authority.bundle,
        "certificate.pem": certificate,
        "README.txt": readme(_config(project, name), until),
    }
    if project.parties()[name][0] in ("server", *SITES):  # a site verifies the keys of other sites itself
        files["revoked.crl"] = authority.revocation_list
    return files


def _subject(project: ProjectConfig, name: str) -> Subject:
    role, org = project.parties()[name]
    hosts = next((tuple(server.hosts) for server in project.servers if server.name == name), _direct(project, name))
    return Subject(project.project, role, name, org, hosts, project.plays(name))


def _direct(project: ProjectConfig, name: str) -> tuple[str, ...]:
    """Return where other sites may dial a site."""
    listening = {site.name: site.direct for site in project.sites}
    listening |= {helper: found.direct for helper, found in project.helpers.items()}
    return tuple(listening.get(name, ()))


def _config(project: ProjectConfig, name: str) -> KitConfig:
    role, org = project.parties()[name]
    servers = [s for s in project.servers if role != "server" or s.name == name]
    tree: dict[str, Any] = {
        "project": project.project,
        "name": name,
        "role": role,
        "org": org,
        "transport": project.transport,
    }
    # The address that a server binds is in no other kit.
    hidden = set() if role == "server" else {"listen"}
    if role == HELPER:
        tree["plays"] = project.plays(name)
    direct = _direct(project, name)
    if direct:
        tree["direct"] = list(direct)
    return KitConfig.model_validate({**tree, "servers": [server.model_dump(exclude=hidden) for server in servers]})


def _settings(project: ProjectConfig, name: str) -> bytes:
    return yaml.dump(_config(project, name).model_dump(exclude_unset=True)).encode()


def _public_key(authority: Authority, name: str) -> EllipticCurvePublicKey:
    """Return the key of the party's newest certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    latest = authority.ledger.latest(name)
    found = None if latest is None else x509.load_pem_x509_certificate(authority.read_issued(latest)).public_key()
    if not isinstance(found, EllipticCurvePublicKey):
        raise ConfigError(f"{name!r} has no key yet", where="--same-key", remedy="renew it without --same-key")
    return found


# ------------------------------------------------------------------ provisioning
#
# Provisioning: from ``project.yaml`` to one folder for each party. Running it again changes no existing kit.


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
                write_kit_file(self.folder / name / "ca.pem", self.authority.bundle)
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
            write_kit_file(self.folder / name / "project-sites.txt", content)
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
            write_kit_file(aside / file, content, private=file == "key.pem")
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
                write_kit_file(self.folder / name / "revoked.crl", self.authority.revocation_list)


def _standing(role: str, plays: str) -> str:
    return f"{role} ({plays})" if plays else role


def _bytes_in(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
