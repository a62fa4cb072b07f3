"""``project.yaml``: who takes part in a project."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from atoll.core.errors import ConfigError
from atoll.runs import yaml
from atoll.runs.schema import Loc, Problem, Section, collect, names_at, refused
from atoll.runtime.identity import HELPER, NO_PARTS, is_part

__all__ = [
    "AdminConfig",
    "HelperConfig",
    "PartyConfig",
    "ProjectConfig",
    "ServerConfig",
    "ValidityConfig",
    "is_name",
    "load_project",
]

RESERVED = ("ca",)
"""Names that no party may have: the authority's own folder."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def is_name(value: str) -> bool:
    """Whether a party can have this name."""
    return bool(_NAME.fullmatch(value)) and ".." not in value and value.lower() not in RESERVED


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(
            "is not a name: use at most 63 letters, digits and single - _ . between them, and not one of: ca"
        )
    return value


def _dns(value: str) -> str:
    if not _DNS.fullmatch(value):
        raise ValueError("is not a host name: use lower-case letters, digits, - and . as in fl.hospital.example")
    return value


def _host(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        return _dns(value)


def _org(value: str) -> str:
    if not value.strip() or len(value) > 64 or not value.isprintable():
        raise ValueError("is not an organisation: write 1 to 64 printable characters")
    return value


def _plays(value: str) -> str:
    if not is_part(value):
        raise ValueError(
            "is no role of a helper: write 1 to 64 printable characters as jobs call it, such as key holder, and not "
            f"one of: {', '.join(NO_PARTS)}"
        )
    return value


S = TypeVar("S", bound=Section)
Name = Annotated[str, AfterValidator(_name)]
Org = Annotated[str, AfterValidator(_org)]
Port = Annotated[int, Field(ge=1, le=65535)]
Days = Annotated[int, Field(ge=1, le=36500)]


_KEEPERS = frozenset({"key-holder", "dealer", "second-server", "enclave"})
"""Roles of helpers that must not be the server's: together with it they see single replies."""
_PAIRS = frozenset({"index-server"})
"""Roles that two helpers play against each other: one organisation with both sees single replies."""


class ServerConfig(Section):
    """A server.

    Attributes:
        name: a DNS label; the certificate has it, whatever address is dialled.
        hosts: DNS names and IP addresses where others reach it, the best first.
        port: the one port that it opens.
        org: its organisation.
        listen: the address it binds; by default all of the machine's.
    """

    name: Annotated[str, AfterValidator(_name), AfterValidator(_dns)]
    hosts: Annotated[list[Annotated[str, AfterValidator(_host)]], Field(min_length=1)]
    port: Port = 8443
    org: Org = "server"
    listen: Annotated[str, AfterValidator(_host)] = "0.0.0.0"  # noqa: S104 - a server is there to be reached


class _Named(Section):
    name: Name
    org: Org


class PartyConfig(_Named):
    """A site.

    Attributes:
        name: unique in the project.
        org: its organisation.
        direct: DNS names and IP addresses where other sites may reach it, if at all; see ``atoll
            site --direct``.
    """

    direct: list[Annotated[str, AfterValidator(_host)]] = Field(default_factory=list)


class HelperConfig(Section):
    """A site that holds no data of clients, and plays a part that jobs need beside them; a word alone is its role.

    Attributes:
        role: what it plays, as jobs call it: ``key holder``, ``dealer``. It stands in the certificate.
        org: whose it is; by default its own name.
        direct: as for a site.
    """

    role: Annotated[str, AfterValidator(_plays)]
    org: Org | None = None
    direct: list[Annotated[str, AfterValidator(_host)]] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _word(cls, said: Any) -> Any:
        return {"role": said} if isinstance(said, str) else said


class AdminConfig(_Named):
    """A person.

    Attributes:
        name: unique in the project.
        org: the person's organisation.
        role: an admin submits and aborts, an auditor only reads.
    """

    role: Literal["admin", "auditor"] = "admin"


class ValidityConfig(Section):
    """For how many days certificates are valid.

    Attributes:
        kits: the parties' certificates.
        ca: the authority's own certificate.
    """

    kits: Days = 365
    ca: Days = 3650


class ProjectConfig(Section):
    """A project.

    Attributes:
        project: its name; part of every certificate.
        servers: usually one.
        sites: the parties that hold data.
        helpers: name -> role of sites without clients, which some protocols need, or a section with ``role``, ``org``
            and ``direct``.
        admins: people who may submit or read.
        transport: the name of the transport.
        validity: of certificates, in days.
    """

    project: Name
    servers: Annotated[list[ServerConfig], Field(min_length=1)]
    sites: list[PartyConfig] = Field(default_factory=list)
    helpers: dict[Name, HelperConfig] = Field(default_factory=dict)
    admins: list[AdminConfig] = Field(default_factory=list)
    transport: Literal["tcp", "grpc"] = "tcp"
    validity: ValidityConfig = Field(default_factory=ValidityConfig)

    @model_validator(mode="after")
    def _unique(self) -> ProjectConfig:
        # A kit's folder has its party's name, and some file systems ignore case.
        seen: dict[str, str] = {}
        problems = []
        for loc, name in self._locate_parties():
            place = Problem(loc, "", "").path
            first = seen.setdefault(name.lower(), place)
            if first != place:
                problems.append(Problem(loc, f"={name!r} is already the name at {first}", "give another name"))
        if self.validity.kits > self.validity.ca:
            text = f"={self.validity.kits} is longer than the authority's own {self.validity.ca} days"
            problems.append(Problem(("validity", "kits"), text, "lower it, or raise validity.ca"))
        problems += self._apart()
        if problems:
            raise PydanticCustomError("part", "project", {"problems": problems})
        return self

    def _apart(self) -> list[Problem]:
        """Refuse an organisation that would open what its own server must not see."""
        servers = {server.org: server.name for server in self.servers}
        return self._find_paired() + [
            Problem(
                ("helpers", name, "org"),
                f"={org!r} also runs the server {servers[org]!r}, and would see what a {found.role} keeps from it",
                "let another organisation play it",
            )
            for name, found in self.helpers.items()
            if (org := found.org or name) in servers and found.role.replace(" ", "-") in _KEEPERS
        ]

    def _find_paired(self) -> list[Problem]:
        """Refuse an organisation that would play both halves of a role that two play against each other."""
        seen: dict[tuple[str, str], str] = {}
        problems = []
        for name, found in self.helpers.items():
            role, org = found.role.replace(" ", "-"), found.org or name
            if role in _PAIRS and seen.setdefault((role, org), name) != name:
                text = f"={org!r} also plays the {found.role} {seen[role, org]!r}, and would see what each keeps from the other"
                problems.append(Problem(("helpers", name, "org"), text, "let another organisation play it"))
        return problems

    def _locate_parties(self) -> Iterator[tuple[Loc, Any]]:
        for section in ("servers", "sites", "admins"):
            for i, party in enumerate(getattr(self, section)):
                yield (section, i, "name"), party.name
        for name in self.helpers:
            yield ("helpers", name), name

    def plays(self, name: str) -> str:
        """A helper's part in jobs; nothing for all others."""
        return self.helpers[name].role if name in self.helpers else ""

    def parties(self) -> dict[str, tuple[str, str]]:
        """Return name -> (role, organisation), servers first."""
        return {
            **{server.name: ("server", server.org) for server in self.servers},
            **{site.name: ("site", site.org) for site in self.sites},
            **{name: (HELPER, found.org or name) for name, found in self.helpers.items()},
            **{admin.name: (admin.role, admin.org) for admin in self.admins},
        }


def load_project(path: str | Path) -> ProjectConfig:
    """Read ``project.yaml``.

    Raises:
        ConfigError: the file cannot be read, or is wrong; the error names path, value and nearest valid key of each
            mistake.
    """
    tree = yaml.read(path)
    return check_settings(ProjectConfig, tree, str(path), "start with project:, servers: and sites:")


def check_settings(kind: type[S], tree: Any, where: str, remedy: str) -> S:
    """Return a mapping as settings.

    Raises:
        ConfigError: it is not a mapping, or not of these settings.
    """
    if not isinstance(tree, dict):
        raise ConfigError(f"expected a mapping here, not {type(tree).__name__}", where=where, remedy=remedy)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(kind, loc)), where) from error
