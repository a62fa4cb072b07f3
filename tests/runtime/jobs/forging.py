"""Bundles that ``make_bundle`` would not make: signed by somebody with a valid key and bad intentions, or changed afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from certificates import authority

from atoll.runtime.identity import Credentials
from atoll.runtime.jobs.archive import inflated, members, write_archive
from atoll.runtime.jobs.bundle import Verified, verify
from atoll.runtime.jobs.manifest import File, Manifest
from atoll.runtime.jobs.names import LIMITS, Limits
from atoll.runtime.jobs.signing import sign

META = (".atoll/manifest.json", ".atoll/signature", ".atoll/certificate.pem")
ADMIN = authority().issue("admin", "ann", org="Bonn")


def forged(
    files: Sequence[tuple[str, bytes]], credentials: Credentials = ADMIN, *, manifest: Manifest | None = None
) -> bytes:
    """A bundle of these very files in this very order, well signed."""
    made = manifest or Manifest(tuple(File.of(*file) for file in files))
    text = made.text()
    head = zip(META, (text, sign(text, credentials), credentials.certificate), strict=True)
    return write_archive([*head, *files])


def opened(bundle: bytes) -> list[tuple[str, bytes]]:
    """All files of a bundle, those about it included."""
    return [(member.name, b"".join(inflated(member, 2**30))) for member in members(bundle, 1000)]


def check(bundle: bytes, limits: Limits = LIMITS) -> Verified:
    """Verify as a server of the project does."""
    return verify(bundle, ca=authority().pem, project="study", limits=limits)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their content, folders without."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
