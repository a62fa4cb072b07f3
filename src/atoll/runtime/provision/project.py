"""Who takes part in a project: ``project.yaml``, and the list of sites that its server reads."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from atoll.core.errors import ConfigError
from atoll.runs import yaml
from atoll.runs.schema import Loc, Problem, Section, collect, names_at, refused

from ..identity import HELPER, NO_PARTS, SITES, is_part
from ..transport import TRANSPORTS

if TYPE_CHECKING:
    from .authority import IssueLedger

__all__ = [
    "AdminConfig",
    "HelperConfig",
    "Listing",
    "PartyConfig",
    "ProjectConfig",
    "ServerConfig",
    "SiteList",
    "ValidityConfig",
    "is_name",
    "load_project",
    "site_list",
]


# ------------------------------------------------------------------ ``project.yaml``: who takes part in a project


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


def _transport(value: str) -> str:
    if value == "memory" or value not in TRANSPORTS:  # one within a process is for tests
        known = [name for name in TRANSPORTS if name != "memory"]
        raise ValueError(f"is not installed: choose {' or '.join(known)}, or install the distribution that has it")
    return value


S = TypeVar("S", bound=Section)
Name = Annotated[str, AfterValidator(_name)]
Org = Annotated[str, AfterValidator(_org)]
TransportName = Annotated[str, AfterValidator(_transport)]
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
        role: an admin submits and aborts, an auditor only reads, an analyst asks SQL and reads the answers to that.
    """

    role: Literal["admin", "auditor", "analyst"] = "admin"


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
    transport: TransportName = "tcp"
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


# ------------------------------------------------------------------ the sites of a project as its server knows them
#
# The sites of a project as its server knows them: a list next to the revocation list, written whenever kits are made.
# ```
# north
# south
# west gone
# keys plays key holder
# ```
#
# One name per line. ``gone`` follows the name of a site that once had a kit and has left the project or had its kit
# revoked. ``plays`` follows the name of a helper.


_LOG = logging.getLogger("atoll.runtime")
_LINE = re.compile(r"(\S+)( gone)?(?: plays (.+))?")


@dataclass(frozen=True)
class Listing:
    """What a list of sites says.

    Attributes:
        named: site -> whether it is part of the project.
        plays: helper -> what it plays; those that are gone, too.
    """

    named: Mapping[str, bool] = field(default_factory=dict)
    plays: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Listing:
        """Read a list.

        Raises:
            ValueError: it is damaged.
        """
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = [match for match in map(_LINE.fullmatch, lines) if match is not None]
        if len(found) < len(lines):
            raise ValueError("it is damaged; copy it again")
        return cls({match[1]: match[2] is None for match in found}, {match[1]: match[3] for match in found if match[3]})

    def text(self) -> str:
        """The inverse of ``read``."""
        gone = {name: "" if there else " gone" for name, there in self.named.items()}
        plays = {name: f" plays {self.plays[name]}" if name in self.plays else "" for name in self.named}
        return "".join(f"{name}{gone[name]}{plays[name]}\n" for name in self.named)


def site_list(project: ProjectConfig, ledger: IssueLedger) -> bytes:
    """Return the list of all sites that were ever issued a kit.

    Args:
        project: who takes part now.
        ledger: who was issued what.
    """
    now = {site.name for site in project.sites} | set(project.helpers)
    issued = [latest for name in ledger.names if (latest := ledger.latest(name)) is not None and latest.role in SITES]
    named = {entry.name: entry.name in now and bool(ledger.valid(entry.name)) for entry in issued}
    return Listing(named, {entry.name: entry.plays for entry in issued if entry.plays}).text().encode()


class SiteList:
    """Follows the list of a server's kit without a restart. Without a list, or with a damaged one, it names no site.

    Args:
        path: ``project-sites.txt`` of a server's kit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._listing = Listing()
        self.changed()

    @property
    def plays(self) -> Mapping[str, str]:
        """Helper -> what it plays; those that are gone, too."""
        return self._listing.plays

    def changed(self) -> bool:
        """Read the file; return whether its names have changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen, before = stamp, self._listing
        self._listing = self._read()
        return self._listing != before

    def among(self, met: Iterable[str]) -> frozenset[str]:
        """Return the sites of the project, helpers included.

        Args:
            met: sites that have connected so far: the list may be older.
        """
        named = self._listing.named
        listed = {name for name, there in named.items() if there}
        gone = {name for name, there in named.items() if not there}
        return frozenset((set(met) | listed) - gone)

    def _read(self) -> Listing:
        try:
            return Listing.read(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Listing()
        except (OSError, ValueError) as error:
            _LOG.error("the list of sites %s is ignored: %s", self._path, error)
            return self._listing

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
