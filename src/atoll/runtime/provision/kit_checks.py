"""What ``atoll doctor`` finds on this machine: the files of a kit, disk, port and handles."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from atoll.core.errors import AtollError, IdentityError

from ..identity import peer_of
from .certificates import certificates_in, read_list
from .keys import load_key, public_pem
from .kit import Kit
from .project import SiteList

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = [
    "EACH",
    "OWN",
    "ROOM",
    "WARN",
    "Finding",
    "Handles",
    "Step",
    "allowed_handles",
    "attempt",
    "authorities_of",
    "check_authority",
    "check_confinement",
    "check_disk",
    "check_handles",
    "check_own_port",
    "check_paper",
    "find_fault",
    "raise_handles",
]


# ------------------------------------------------------------------ how many files and connections a process may open: as many as the system allows


_LOG = logging.getLogger("atoll.runtime")

OWN = 256
"""Handles that a daemon needs besides its sites: store, libraries, people, and visitors not admitted yet."""
EACH = 2
"""Handles for each site: its connection, and a reply waiting in a file."""
_PLENTY = 1 << 20


@dataclass(frozen=True)
class Handles:
    """The limits of a process (RLIMIT_NOFILE of getrlimit(2)).

    Attributes:
        soft: the limit in force.
        hard: the most that ``soft`` may be raised to; no limit counts as 1,048,576.
    """

    soft: int
    hard: int

    @property
    def sites(self) -> int:
        """Return how many sites at once the hard limit is enough for."""
        return max(0, (self.hard - OWN) // EACH)


def allowed_handles() -> Handles | None:
    """Return the limits of this process; None if the system has none."""
    try:
        import resource
    except ImportError:  # not POSIX
        return None
    soft, hard = (_PLENTY if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Handles(soft, hard)


def raise_handles(sites: int = 1000) -> Handles | None:
    """Raise the soft limit of this process and its children to the hard limit; log a message if that is low.

    Args:
        sites: how many sites it should be enough for.

    Returns:
        The new limits; None if the system has none.
    """
    found = allowed_handles()
    if found is None:
        return None
    import resource

    if found.soft < found.hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (found.hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (ValueError, OSError) as error:  # some systems have a lower limit of their own
            _LOG.info("the limit of %d open files stays: %s", found.soft, error)
    if found.sites < sites:
        _LOG.warning(
            "this process may open %d files at most, enough for about %d sites at once: raise the hard limit for more (ulimit -Hn, or LimitNOFILE= of a service)",
            found.hard, found.sites,
        )  # fmt: skip
    return allowed_handles()


# ------------------------------------------------------------------ what one step of a check found


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes:
        step: what was checked.
        state: ok, problem, warning for what works and could be safer, or skipped if an earlier problem leaves nothing to
            check.
        said: what was found, with the node it is about.
        remedy: what to do next (problems and warnings).
    """

    step: str
    state: Literal["ok", "problem", "warning", "skipped"]
    said: str
    remedy: str | None = None

    @classmethod
    def ok(cls, step: str, said: str) -> Finding:
        """Return a finding that all is well."""
        return cls(step, "ok", said)

    @classmethod
    def problem(cls, step: str, said: str, remedy: str) -> Finding:
        """Return a finding that needs action."""
        return cls(step, "problem", said, remedy)

    @classmethod
    def warning(cls, step: str, said: str, remedy: str) -> Finding:
        """Return a finding that all works and could be safer."""
        return cls(step, "warning", said, remedy)

    @classmethod
    def skip_step(cls, step: str, why: str) -> Finding:
        """Return a finding that nothing could be checked."""
        return cls(step, "skipped", why)


Step = Iterator[Finding]


def attempt(step: str, look: Callable[[], str]) -> Finding:
    """Check one thing; an ``AtollError`` is a problem with its own remedy."""
    try:
        return Finding.ok(step, look())
    except AtollError as error:
        place = f" (in {error.where})" if error.where else ""
        return Finding.problem(step, f"{error.what}{place}", error.remedy or "see the documentation")


# ------------------------------------------------------------------ this machine: room on its disk, a server's port, and how many may connect to it


ROOM = 1 << 30
"""Free bytes; with less, a work folder is too full for models and checkpoints."""


def check_disk(work: Path, room: int = ROOM) -> Finding:
    """Check that a folder can be written and has room."""
    there = next(path for path in (work, *work.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Finding.problem("disk", f"{there} cannot be written", "choose another folder, or fix its permissions")
    if free < room:
        said = f"{there} has {free / 1e9:.1f} GB free, less than {room / 1e9:.1f}"
        return Finding.problem("disk", said, "free space: models and checkpoints are kept there")
    return Finding.ok("disk", f"{there} has {free / 1e9:.0f} GB free")


def check_confinement(kit: Kit) -> Finding:
    """Check that jobs can be confined here."""
    from ..confinement.sandbox import INSTALL, confinement

    made, node = confinement(), f"{kit.role} {kit.name!r}"
    return (
        Finding.ok("jobs", f"{node}: {made}")
        if made.confined
        else Finding.warning("jobs", f"{node}: {made}", f"{INSTALL}, or run it as a user of its own in a container")
    )


def check_own_port(kit: Kit) -> Finding:
    """Check that a server may open its port, or is running on it already."""
    host, port = kit.server.listen, kit.server.port
    node = f"server {kit.name!r}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return Finding.problem(
                "port", f"{node}: this user may not open port {port}", "choose a port above 1023 in project.yaml"
            )
        except OSError as error:
            if _answers_as(kit, port):
                return Finding.ok("port", f"{node}: is running, on port {port}")
            remedy = f"stop what uses port {port} on {host}, or choose another port or listen address in project.yaml"
            return Finding.problem("port", f"{node}: cannot open {host}:{port} ({error.strerror})", remedy)
    return Finding.ok("port", f"{node}: {host}:{port} is free")


def check_handles(kit: Kit) -> Finding:
    """Check that a server may open as many files as its project has sites; ``atoll server`` raises its limit as far as it may."""
    found, sites = allowed_handles(), len(SiteList(kit.sites_file).among(frozenset()))
    node = f"server {kit.name!r}"
    if found is None:
        return Finding.skip_step("open files", f"{node}: this system has no limit that could be asked for")
    said = f"{node}: {found.hard} files and connections at once are allowed here, enough for about {found.sites} sites"
    if found.sites < sites:
        remedy = "raise the hard limit of open files (ulimit -Hn, or LimitNOFILE= of a service)"
        return Finding.problem("open files", f"{said}, and the project has {sites}", remedy)
    return Finding.ok("open files", said)


def _answers_as(kit: Kit, port: int) -> bool:
    """Tell whether the program that listens there presents this kit's certificate; it is only compared, not trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    listen = kit.server.listen
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)  # noqa: S104
    try:
        with (
            socket.create_connection((host, port), timeout=3) as plain,
            context.wrap_socket(plain, server_hostname=kit.name) as wrapped,
        ):
            certificate = wrapped.getpeercert(binary_form=True)
    except OSError:
        return False
    return certificate == ssl.PEM_cert_to_DER_cert(kit.bytes_of("certificate.pem").decode())


# ------------------------------------------------------------------ the kit itself: files, key, certificate, dates, revocation list; and whose the authority is
#
# Parties seal letters for keys that the authority's certificates vouch for. A server with the authority's key could make a certificate for any party, and read all letters.


WARN = timedelta(days=30)
"""A certificate that ends sooner gets a warning."""


def check_paper(kit: Kit, now: datetime | None = None) -> Step:
    """Check a kit without the network."""
    yield attempt("files", lambda: _files(kit))
    yield attempt("key", lambda: _key(kit))
    yield attempt("certificate", lambda: str(kit.peer()))
    yield attempt("authority", lambda: describe_authority(kit))
    yield attempt("validity", lambda: _valid(kit, datetime.now(UTC) if now is None else now))
    if kit.role == "server":
        yield attempt("server names", lambda: _hosts(kit))
    if kit.role == "server" or kit.revoked_file.is_file():
        yield attempt("revocation list", lambda: _check_revoked(kit))


def certificate_of(kit: Kit) -> Certificate:
    """Return the party's certificate."""
    return certificates_in(kit.bytes_of("certificate.pem"), str(kit.folder / "certificate.pem"))[0]


def _files(kit: Kit) -> str:
    names = ["ca.pem", "certificate.pem", "key.pem", *(["revoked.crl"] if kit.role == "server" else [])]
    for name in names:
        kit.bytes_of(name)
    return f"{', '.join(('kit.yaml', *names))} of {kit.role} {kit.name!r}, project {kit.project!r}"


def _key(kit: Kit) -> str:
    kit.credentials()
    at_rest = "encrypted" if b"ENCRYPTED" in kit.bytes_of("key.pem")[:64] else "not encrypted"
    return f"belongs to the certificate, readable by its owner only, {at_rest} at rest"


def authorities_of(kit: Kit) -> Sequence[Certificate]:
    """Return the certificates of the authorities that the party trusts."""
    return certificates_in(kit.bytes_of("ca.pem"), str(kit.folder / "ca.pem"))


def describe_authority(kit: Kit) -> str:
    """Return who signed the party's certificate, with the fingerprint that parties compare.

    Raises:
        IdentityError: no authority in ``ca.pem`` did.
    """
    from cryptography.exceptions import InvalidSignature

    own, known = certificate_of(kit), authorities_of(kit)
    for authority in known:
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        others = "".join(f"; ca.pem also trusts {_name_authority(other)}" for other in known if other is not authority)
        said = f"{_name_authority(authority)} signed the certificate; its own ends on {authority.not_valid_after_utc:%Y-%m-%d}"
        return f"{said}{others}. Compare the fingerprint with other sites by telephone"
    raise IdentityError(
        f"the certificate of {kit.name!r} is not signed by the authority in ca.pem",
        where=str(kit.folder),
        remedy="copy the kit again, whole: ca.pem and certificate.pem belong together",
    )


def _name_authority(authority: Certificate) -> str:
    """Return an authority's name and its fingerprint, as ``openssl x509 -fingerprint -sha256`` prints it."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return f"{authority.subject.rfc4514_string()}, SHA-256 {authority.fingerprint(SHA256()).hex(':').upper()},"


_APART = "let the provisioner, who is not the server's operator, keep the authority's key offline"


def find_fault(certificate: Certificate, authorities: Sequence[Certificate]) -> str:
    """Return why a server's certificate lets the server certify keys; nothing if it does not."""
    from cryptography import x509

    with suppress(x509.ExtensionNotFound):
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "its certificate is an authority's"
    with suppress(x509.ExtensionNotFound):
        if certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign:
            return "its certificate may sign certificates"
    own = _public(certificate)
    if any(own == _public(authority) for authority in authorities):
        return "its key is the authority's"
    return ""


def check_authority(kit: Kit, work: Path) -> Finding:
    """Check that a server cannot certify keys: its certificate is no authority's, and the authority's key is neither in its kit nor in its working folder, nor beside the kit."""
    node, step = f"server {kit.name!r}", "authority's key"
    try:
        known = authorities_of(kit)
        fault = find_fault(certificate_of(kit), known)
    except AtollError as error:
        return Finding.skip_step(step, f"{node}: not compared: {error.what}")
    if fault:
        renew = f"atoll provision PROJECT --rotate-ca, then --renew {kit.name}"
        return Finding.problem(step, f"{node}: {fault}", f"{_APART}, and make both anew: {renew}")
    public, near = {_public(each) for each in known}, kit.folder.resolve().parent
    for folder in dict.fromkeys(path.resolve() for path in (kit.folder, near, work, work / kit.name)):
        for file in (*_keys_in(folder, public), *_keys_in(folder / "ca", public)):
            said = f"{node}: the authority's key is here: {file}"
            if folder == near:
                return Finding.warning(step, f"{said}, beside the kit", f"{_APART}; give the server its kit alone")
            rotate = "since this machine has seen it, make a new one: atoll provision PROJECT --rotate-ca"
            return Finding.problem(step, said, f"{_APART}; {rotate}")
    return Finding.ok(step, f"{node}: is neither in its kit, nor beside it, nor in {work}")


def _keys_in(folder: Path, public: set[bytes], most: int = 1 << 14) -> Iterator[Path]:
    """Yield files of a folder that hold a private key of an authority. One that is encrypted is known by its name alone."""
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            with suppress(OSError, IdentityError):
                if (
                    not file.is_file()
                    or file.stat().st_size > most
                    or b"PRIVATE KEY-----" not in (pem := file.read_bytes())
                ):
                    continue
                if b"ENCRYPTED" in pem.partition(b"\n")[0]:
                    if file.name.startswith("ca-key"):
                        yield file
                elif public_pem(load_key(pem, None, str(file)).public_key()) in public:
                    yield file


def _public(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _valid(kit: Kit, now: datetime) -> str:
    own = certificate_of(kit)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    remedy = f"ask the provisioner for a new certificate: atoll provision PROJECT --renew {kit.name}"
    if now < first:
        raise IdentityError(
            f"the certificate of {kit.name!r} is valid from {first:%Y-%m-%d %H:%M} UTC, and this clock says {now:%Y-%m-%d %H:%M}",
            where="certificate.pem",
            remedy="set this machine's clock",
        )
    if now > last:
        raise IdentityError(
            f"the certificate of {kit.name!r} expired on {last:%Y-%m-%d %H:%M} UTC ({(now - last).days} days ago)",
            where="certificate.pem",
            remedy=f"{remedy}; if that date is to come, set this machine's clock",
        )
    soon = f"; renew it soon ({remedy})" if last - now < WARN else ""
    return f"{(last - now).days} days left, until {last:%Y-%m-%d}{soon}"


def _hosts(kit: Kit) -> str:
    from cryptography import x509

    names = certificate_of(kit).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    there = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    missing = [host for host in kit.server.hosts if host not in there]
    if missing:
        raise IdentityError(
            f"the certificate of {kit.name!r} does not name {', '.join(missing)}",
            where="certificate.pem",
            remedy=f"put them into project.yaml and renew: atoll provision PROJECT --renew {kit.name}",
        )
    return f"the certificate names {', '.join(there)}"


def _check_revoked(kit: Kit) -> str:
    found = read_list(kit.bytes_of("revoked.crl"), kit.bytes_of("ca.pem"), str(kit.revoked_file))
    if peer_of(kit.bytes_of("certificate.pem")).serial in found.serials:
        raise IdentityError(
            f"the certificate of {kit.name!r} itself is revoked",
            where=str(kit.revoked_file),
            remedy=f"if it is to take part again, the project's provisioner makes a new kit: atoll provision PROJECT --renew {kit.name}",
        )
    return f"issue {found.number} of {found.made:%Y-%m-%d}, signed by the authority: {len(found.serials)} certificates"
