"""A startup kit: a folder with everything one party needs, and nothing of another's.

```
NAME/
├── kit.yaml          who it is, and where the servers are
├── ca.pem            the authorities it trusts
├── certificate.pem   its own certificate
├── key.pem           its private key, readable by its owner only
├── revoked.crl       servers and sites: certificates that are refused, signed by the authority
├── project-sites.txt servers only: the sites of the project
└── README.txt        the one command that starts it
```
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from atoll.core.errors import ConfigError, IdentityError
from atoll.runs import yaml
from atoll.runs.schema import Section
from atoll.runtime.identity import Credentials, Peer, peer_of
from atoll.runtime.transport.addresses import joined

from .passphrase import find_passphrase
from .project import Name, Org, ServerConfig, checked

__all__ = ["Kit", "KitConfig", "Way", "loose_mode"]


class Way(NamedTuple):
    """A way to a server.

    Attributes:
        server: its name, which its certificate must say.
        host: name or address.
        port: TCP port.
    """

    server: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``."""
        return joined(self.host, self.port)


class KitConfig(Section):
    """``kit.yaml``.

    Attributes:
        project: the project's name.
        name: the party's name.
        role: server, site, admin or auditor.
        org: the organisation.
        transport: how bytes travel.
        servers: where servers are found; in a server's kit only itself.
        direct: where other sites may dial it (sites).
    """

    project: Name
    name: Name
    role: Literal["server", "site", "admin", "auditor"]
    org: Org
    transport: Literal["tcp", "grpc"]
    servers: Annotated[list[ServerConfig], Field(min_length=1)]
    direct: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Kit:
    """A startup kit on disk.

    Attributes:
        folder: where it lies.
        config: its ``kit.yaml``.
        passphrase: what its key is encrypted with, if it is.
    """

    folder: Path
    config: KitConfig
    passphrase: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, folder: str | Path, passphrase: str | bytes | None = None) -> Kit:
        """Read a kit's settings; keys are read by ``credentials``.

        Args:
            folder: the kit's folder.
            passphrase: of its key; by default what ``ATOLL_PASSPHRASE`` or the file named by ``ATOLL_PASSPHRASE_FILE`` holds.

        Raises:
            ConfigError: there is no kit, or its settings cannot be used.
        """
        path = Path(folder)
        if not (path / "kit.yaml").is_file():
            raise ConfigError(
                f"{str(folder)!r} is no startup kit: it has no kit.yaml",
                where=str(folder),
                remedy="give the folder that `atoll provision` made for this party, unzipped",
            )
        config = checked(KitConfig, yaml.read(path / "kit.yaml"), str(path / "kit.yaml"), "copy the kit again")
        given = passphrase.encode() if isinstance(passphrase, str) else passphrase
        return cls(path, config, given if given is not None else find_passphrase())

    @property
    def project(self) -> str:
        """The project's name."""
        return self.config.project

    @property
    def name(self) -> str:
        """The party's name."""
        return self.config.name

    @property
    def role(self) -> str:
        """The party's role."""
        return self.config.role

    def require(self, role: str) -> None:
        """Refuse a kit of another role.

        Raises:
            ConfigError: it is one.
        """
        if self.role != role:
            raise ConfigError(
                f"the kit is that of {self.role} {self.name!r}", where=str(self.folder), remedy=f"give a {role}'s kit"
            )

    @property
    def org(self) -> str:
        """The party's organisation."""
        return self.config.org

    @property
    def transport(self) -> str:
        """How bytes travel."""
        return self.config.transport

    @property
    def server(self) -> ServerConfig:
        """The (first) server: in a server's kit itself."""
        return self.config.servers[0]

    @property
    def ways(self) -> list[Way]:
        """Every way to a server: those to the first one first, each server's best one first."""
        return [Way(server.name, host, server.port) for server in self.config.servers for host in server.hosts]

    @property
    def revoked_file(self) -> Path:
        """The revocation list (servers; sites, as it was when the kit was made)."""
        return self.folder / "revoked.crl"

    @property
    def sites_file(self) -> Path:
        """The sites of the project (servers)."""
        return self.folder / "project-sites.txt"

    def bytes_of(self, name: str) -> bytes:
        """A file of the kit.

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
        """What the kit's certificate says of its owner.

        Raises:
            IdentityError: it is not the certificate of the party that ``kit.yaml`` names.
        """
        found = peer_of(self.bytes_of("certificate.pem"))
        said = (self.project, self.role, self.name)
        if (found.project, found.role, found.name) != said:
            raise IdentityError(
                f"kit.yaml says {self.role} {self.name!r} of project {self.project!r}, and the certificate {found.role} "
                f"{found.name!r} of project {found.project!r}",
                where=str(self.folder),
                remedy="use a kit as it was made: what a party may do is in its certificate",
            )
        return found

    def credentials(self) -> Credentials:
        """What the party proves its name with.

        Raises:
            IdentityError: the key may be read by others, does not belong to the certificate, or its passphrase is missing or wrong.
            ConfigError: a file is missing.
        """
        from .keys import decrypted, fits

        self.peer()
        sealed, path = self.bytes_of("key.pem"), self.folder / "key.pem"
        loose = loose_mode(path)
        if loose is not None:
            raise IdentityError(
                f"the private key may be read by others (mode {loose:04o})", where=str(path), remedy=f"chmod 600 {path}"
            )
        key, certificate = decrypted(sealed, self.passphrase, str(path)), self.bytes_of("certificate.pem")
        if not fits(certificate, key):
            raise IdentityError(
                f"the private key does not belong to the certificate of {self.name!r}",
                where=str(self.folder),
                remedy="copy key.pem and certificate.pem from one and the same kit",
            )
        return Credentials(self.bytes_of("ca.pem"), certificate, key)


def loose_mode(path: Path) -> int | None:
    """The permission bits of a file that others than its owner may use; None if it is private, or the system has no such bits."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return mode if os.name == "posix" and mode & 0o077 else None
