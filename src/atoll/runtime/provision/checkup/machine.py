"""This machine: room on its disk, a server's port, and how many may connect to it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from pathlib import Path

from atoll.runtime.handles import allowed_handles
from atoll.runtime.provision.kit import Kit
from atoll.runtime.provision.sites import SiteList

from .finding import Finding

__all__ = ["ROOM", "check_confinement", "check_disk", "check_handles", "check_own_port"]

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
    from atoll.runtime.confinement.confining import INSTALL, confinement

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
