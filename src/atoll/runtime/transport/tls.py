"""Python TLS 1.3 contexts from credentials in memory."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials

__all__ = ["client_context", "server_context"]


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the end that is dialled: it demands a certificate of the same authority.

    Raises:
        IdentityError: certificate, key and authority cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no session resumption: each connection proves who it is
    return _load_context(context, credentials)


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the end that dials: it demands a certificate of the same authority, with the name that was dialled.

    Raises:
        IdentityError: certificate, key and authority cannot be read, or do not belong together.
    """
    return _load_context(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), credentials)


def _load_context(context: ssl.SSLContext, credentials: Credentials) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=credentials.ca.decode("ascii"))
        with tempfile.TemporaryFile() as holder:  # the ssl module reads keys from files only
            holder.write(credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n")
            holder.flush()
            _load_chain(context, holder.fileno(), credentials)
    except (ssl.SSLError, ValueError) as error:
        raise IdentityError(
            f"certificate, key and authority do not work together: {error}",
            where="credentials",
            remedy="use the three files of one kit as `atoll provision` made them",
        ) from error
    return context


def _load_chain(context: ssl.SSLContext, number: int, credentials: Credentials) -> None:
    # The ssl module wants a path. A file without a name leaves no key on the disk, whenever the process is killed.
    nameless = Path(f"/proc/self/fd/{number}")
    if nameless.exists():
        context.load_cert_chain(nameless)
        return
    handle, name = tempfile.mkstemp()  # readable by the owner only
    try:
        os.write(handle, credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n")
        os.close(handle)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
