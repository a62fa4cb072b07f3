"""Bundles that ``make_bundle`` would not make: signed by somebody with a valid key and bad intentions, or changed afterwards."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from atoll.runtime.bundle import LIMITS, BundleLimits, File, Manifest, Verified, members, sign, verify
from atoll.runtime.identity import Credentials
from tests.support.certificates import authority

META = (".atoll/manifest.json", ".atoll/signature", ".atoll/certificate.pem")
ADMIN = authority().issue("admin", "ann", org="Bonn")


def forged(
    files: Sequence[tuple[str, bytes]], credentials: Credentials = ADMIN, *, manifest: Manifest | None = None
) -> bytes:
    """A bundle of these very files in this very order, well signed."""
    made = manifest or Manifest(tuple(File.of(*file) for file in files))
    text = made.text()
    head = zip(META, (text, sign(text, credentials), credentials.certificate), strict=True)
    return any_archive([*head, *files])


def any_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of any names, those too that ``write_archive`` refuses."""
    made = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(made, "w") as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, content)
    return made.getvalue()


def opened(bundle: bytes) -> list[tuple[str, bytes]]:
    """All files of a bundle, those about it included."""
    return [(member.name, member.content) for member in members(bundle, 1000)]


def check(bundle: bytes, limits: BundleLimits = LIMITS) -> Verified:
    """Verify as a server of the project does."""
    return verify(bundle, ca=authority().pem, project="study", limits=limits)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their content, folders without."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
