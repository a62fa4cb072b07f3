"""The files of one party's kit: new or renewed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.runs import yaml
from atoll.runtime.identity import HELPER, SITES

from .authority import Authority
from .certificates import Subject
from .files import make_folder, write
from .keys import make_key, seal_key
from .kit import KitConfig
from .project import ProjectConfig
from .readme import readme

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["kit_files", "newer", "renew_kit"]

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
        write(folder / "key.pem", files.pop("key.pem"), private=True)
        todo = f"give {name} the new kit"
    else:
        public = _public_key(authority, name)
        certificate = authority.issue(_subject(project, name), public, project.validity.kits, now)
        files = _public_files(project, name, authority, certificate)
        todo = f"give {name} the new certificate.pem; its key stays"
    for file, content in files.items():
        write(folder / file, content)
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
