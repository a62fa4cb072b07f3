"""A startup kit: a folder with everything that one party needs, and nothing of other parties.

```
NAME/
├── kit.yaml          who it is, and where the servers are
├── ca.pem            the authorities it trusts
├── certificate.pem   its own certificate
├── key.pem           its private key, readable by its owner only
├── revoked.crl       servers, sites and helpers: certificates that are refused, signed by the authority
├── project-sites.txt servers only: the sites of the project
└── README.txt        the one command that starts it
```
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from atoll.core.errors import ConfigError, IdentityError
from atoll.runs import yaml
from atoll.runs.schema import Section

from ..identity import Credentials, Peer, peer_of
from ..transport.base import join_address
from .keys import find_passphrase
from .project import Name, Org, ServerConfig, TransportName, check_settings

__all__ = ["Kit", "KitConfig", "Way", "loose_mode"]


class Way(NamedTuple):
    """An address of a server.

    Attributes:
        server: the server's name, which its certificate must have.
        host: name or address.
        port: TCP port.
    """

    server: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``."""
        return join_address(self.host, self.port)


class KitConfig(Section):
    """``kit.yaml``.

    Attributes:
        project: the project's name.
        name: the party's name.
        role: server, site, helper, admin, auditor or analyst.
        org: the organisation.
        transport: the name of the transport.
        servers: the servers' addresses; in a server's kit only its own.
        direct: where other sites may dial it (sites and helpers).
        plays: what a helper plays in jobs.
    """

    project: Name
    name: Name
    role: Literal["server", "site", "helper", "admin", "auditor", "analyst"]
    org: Org
    transport: TransportName
    servers: Annotated[list[ServerConfig], Field(min_length=1)]
    direct: list[str] = Field(default_factory=list)
    plays: str = ""


@dataclass(frozen=True)
class Kit:
    """A startup kit on disk.

    Attributes:
        folder: the kit's folder.
        config: its ``kit.yaml``.
        passphrase: the passphrase of its key, if it is encrypted.
        held: what ``unlocked`` has opened.
    """

    folder: Path
    config: KitConfig
    passphrase: bytes | None = field(default=None, repr=False)
    held: Credentials | None = field(default=None, repr=False)

    @classmethod
    def read(cls, folder: str | Path, passphrase: str | bytes | None = None) -> Kit:
        """Read a kit's settings; ``credentials`` reads the keys.

        Args:
            folder: the kit's folder.
            passphrase: of its key; by default the value of ``ATOLL_PASSPHRASE`` or the content of the file that
                ``ATOLL_PASSPHRASE_FILE`` names.

        Raises:
            ConfigError: there is no kit, or its settings cannot be used.
        """
        path = Path(folder)
        if not (path / "kit.yaml").is_file():
            raise ConfigError(
                f"{str(folder)!r} is not a startup kit: it has no kit.yaml",
                where=str(folder),
                remedy="give the folder that `atoll provision` made for this party, unzipped",
            )
        config = check_settings(KitConfig, yaml.read(path / "kit.yaml"), str(path / "kit.yaml"), "copy the kit again")
        given = passphrase.encode() if isinstance(passphrase, str) else passphrase
        return cls(path, config, given if given is not None else find_passphrase())

    @property
    def project(self) -> str:
        """Return the project's name."""
        return self.config.project

    @property
    def name(self) -> str:
        """Return the party's name."""
        return self.config.name

    @property
    def role(self) -> str:
        """Return the party's role."""
        return self.config.role

    @property
    def plays(self) -> str:
        """A helper's part in jobs; nothing for all others."""
        return self.config.plays

    def require(self, *roles: str) -> None:
        """Refuse a kit of another role than these.

        Raises:
            ConfigError: it is of another role.
        """
        if self.role not in roles:
            raise ConfigError(
                f"this is the kit of {self.role} {self.name!r}",
                where=str(self.folder),
                remedy=f"give a {roles[0]}'s kit",
            )

    @property
    def org(self) -> str:
        """Return the party's organisation."""
        return self.config.org

    @property
    def transport(self) -> str:
        """Return the name of the transport."""
        return self.config.transport

    @property
    def server(self) -> ServerConfig:
        """Return the (first) server; in a server's kit, itself."""
        return self.config.servers[0]

    @property
    def ways(self) -> list[Way]:
        """Return every address of a server: those of the first server first, each server's best one first."""
        return [Way(server.name, host, server.port) for server in self.config.servers for host in server.hosts]

    @property
    def revoked_file(self) -> Path:
        """Return the path of the revocation list (servers; sites, as of when the kit was made)."""
        return self.folder / "revoked.crl"

    @property
    def sites_file(self) -> Path:
        """Return the path of the list of sites (servers)."""
        return self.folder / "project-sites.txt"

    def bytes_of(self, name: str) -> bytes:
        """Return a file of the kit.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the kit of {self.role} {self.name!r} lacks {name}: {error.strerror}",
                where=str(self.folder / name),
                remedy="copy the kit again, whole, or let the provisioner renew it",
            ) from error

    def peer(self) -> Peer:
        """Return what the kit's certificate says about its owner.

        Raises:
            IdentityError: it is not the certificate of the party that ``kit.yaml`` names.
        """
        found = peer_of(self.bytes_of("certificate.pem"))
        said = (self.project, self.role, self.name, self.plays)
        if (found.project, found.role, found.name, found.plays) != said:
            parts = [f" ({part})" if part else "" for part in (self.plays, found.plays)]
            raise IdentityError(
                f"kit.yaml says {self.role} {self.name!r}{parts[0]} of project {self.project!r}, but the certificate says "
                f"{found.role} {found.name!r}{parts[1]} of project {found.project!r}",
                where=str(self.folder),
                remedy="use a kit as it was made: what a party may do is in its certificate",
            )
        return found

    def unlocked(self) -> Kit:
        """Return the kit with its key opened, and without the passphrase: a process that serves for months opens the key once, and holds it in one place.

        Raises:
            IdentityError: as ``credentials``.
            ConfigError: a file is missing.
        """
        return replace(self, passphrase=None, held=self.credentials())

    def credentials(self) -> Credentials:
        """Return what the party proves its name with.

        Raises:
            IdentityError: others may read the key, it does not belong to the certificate, or its passphrase is missing
                or wrong.
            ConfigError: a file is missing.
        """
        from .keys import decrypt_key, fits

        if self.held is not None:
            return self.held
        self.peer()
        sealed, path = self.bytes_of("key.pem"), self.folder / "key.pem"
        loose = loose_mode(path)
        if loose is not None:
            raise IdentityError(
                f"the private key may be read by others (mode {loose:04o})", where=str(path), remedy=f"chmod 600 {path}"
            )
        key, certificate = decrypt_key(sealed, self.passphrase, str(path)), self.bytes_of("certificate.pem")
        if not fits(certificate, key):
            raise IdentityError(
                f"the private key does not belong to the certificate of {self.name!r}",
                where=str(self.folder),
                remedy="copy key.pem and certificate.pem from one and the same kit",
            )
        return Credentials(self.bytes_of("ca.pem"), certificate, key)


def loose_mode(path: Path) -> int | None:
    """Return the permission bits of a file that others may use; None if it is private, or the system has no such bits."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return mode if os.name == "posix" and mode & 0o077 else None
