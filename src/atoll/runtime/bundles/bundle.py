"""A job as one signed file: ``job.yaml`` and the modules of its source folder; but for nonce and time, the same bytes whenever it is made.

```
.atoll/manifest.json    every file with its SHA-256, a nonce and the time
.atoll/signature        by an administrator's key, over the manifest
.atoll/certificate.pem  the administrator's certificate
job.yaml
source/…
```
"""

from __future__ import annotations

import hashlib
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from atoll.core.errors import BundleError

from ..identity import Credentials, Peer
from .archive import Member, members, write_archive
from .manifest import JOB_FILE, SOURCE, Manifest
from .names import LIMITS, Limits, hidden, require_names
from .signing import require_signature, sign

__all__ = ["Verified", "contents", "make_bundle", "opened", "source_files", "verify"]

_META = (".atoll/manifest.json", ".atoll/signature", ".atoll/certificate.pem")
_META_SIZES = (4 * 2**20, 1024, 64 * 1024)


@dataclass(frozen=True)
class Verified:
    """A bundle that holds what its signer has put into it.

    Attributes:
        manifest: its files.
        signer: who signed it.
        job: the text of ``job.yaml``.
    """

    manifest: Manifest
    signer: Peer
    job: bytes


def source_files(folder: Path, limits: Limits = LIMITS) -> list[tuple[str, bytes]]:
    """The files that travel, sorted by path: all but hidden ones and caches.

    Raises:
        BundleError: there is a link or a special file among them, a name that means something else elsewhere, or too much.
    """
    found: list[tuple[str, bytes]] = []
    left = limits.total
    for path in _walk(folder, folder, limits.depth):
        left -= path.stat().st_size
        if left < 0 or path.stat().st_size > limits.file or len(found) >= limits.files:
            raise BundleError(
                f"it is more than {limits.files} files, {limits.file} bytes a file or {limits.total} bytes in all",
                where=str(path),
                remedy="keep data and models out of the source folder: sites hold their data themselves",
            )
        found.append((path.relative_to(folder).as_posix(), path.read_bytes()))
    found.sort()
    require_names([name for name, _ in found], limits)
    return found


def _walk(folder: Path, top: Path, depth: int) -> Iterator[Path]:
    if depth == 0:
        raise BundleError("folders lie too deep in each other", where=str(folder), remedy="use a flatter folder")
    for path in folder.iterdir():
        if hidden(path.name):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(path, top, depth - 1)
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise BundleError(
                f"{path.relative_to(top).as_posix()} is a link or a special file",
                where=str(top),
                remedy="put a copy of the file itself into the source folder",
            )


def make_bundle(
    job: bytes,
    source: Path | None,
    credentials: Credentials,
    limits: Limits = LIMITS,
    *,
    nonce: str | None = None,
    now: float | None = None,
) -> bytes:
    """Sign a job and its source folder.

    Args:
        job: the text of ``job.yaml``.
        source: the folder of its modules, if it has one.
        credentials: the administrator's.
        limits: what a bundle may be.
        nonce: 32 hexadecimal digits, never used before; by default drawn from the system.
        now: seconds since 1970; by default this machine's clock.

    Raises:
        BundleError: something in the folder cannot travel.
        IdentityError: the credentials cannot sign.
        MissingExtraError: cryptography is not installed.
    """
    files = [(f"{SOURCE}/{name}", content) for name, content in (source_files(source, limits) if source else [])]
    files = sorted([(JOB_FILE, job), *files])
    signed = time.time() if now is None else now
    text = Manifest.of(files, secrets.token_hex(16) if nonce is None else nonce, int(signed * 1e6)).text()
    head = zip(_META, (text, sign(text, credentials), credentials.certificate), strict=True)
    made = write_archive([*head, *files])
    if len(made) > limits.bundle:
        raise _refused(f"it has {len(made)} bytes, and {limits.bundle} are allowed")
    return made


def verify(
    bundle: bytes,
    *,
    ca: bytes,
    project: str,
    roles: Iterable[str] = ("admin",),
    revoked: Callable[[int], bool] | None = None,
    now: datetime | None = None,
    known: Callable[[Manifest], bool] = lambda manifest: False,
    limits: Limits = LIMITS,
) -> Verified:
    """Refuse a bundle that is not exactly what an administrator of the project has signed. Writes nothing, runs nothing.

    Args:
        bundle: its bytes.
        ca: the project's authorities, PEM.
        project: the project's name.
        roles: who may sign.
        revoked: says whether a serial number was revoked.
        now: by default this machine's clock.
        known: says whether this very manifest was taken before. Then it is enough that the signer's certificate was valid when it signed: a job may
            outlive it. Of any other the signer could have dated it back.
        limits: what a bundle may be.

    Raises:
        BundleError: a file was altered, added, moved or removed, or the bundle must not be opened.
        IdentityError: the signer is of another role, project or authority, out of date or revoked.
        MissingExtraError: cryptography is not installed.
    """
    meta, files = opened(bundle, limits)
    text, signature, certificate = meta
    manifest = Manifest.parse(text)
    then = _signed(manifest) if known(manifest) else None
    signer = require_signature(
        text, signature, certificate, ca=ca, project=project, roles=roles, revoked=revoked, now=now, then=then
    )
    job = b""
    for path, content in contents(manifest, files, limits):
        job = content if path == JOB_FILE else job
    return Verified(manifest, signer, job)


def _signed(manifest: Manifest) -> datetime | None:
    try:
        return datetime.fromtimestamp(manifest.signed / 1e6, UTC)
    except (OverflowError, OSError, ValueError):  # no moment that a calendar has
        return None


def contents(manifest: Manifest, files: list[Member], limits: Limits) -> Iterator[tuple[str, bytes]]:
    """The files of a bundle, each compared with the manifest.

    Raises:
        BundleError: they are not those of the manifest, not in its order, altered, or too much.
    """
    if [file.path for file in manifest.files] != [member.name for member in files]:
        raise _refused("its files are not those that were signed, in the order in which they were signed")
    require_names([file.path for file in manifest.files], limits)
    if manifest.total > limits.total:
        raise _refused(f"its files have {manifest.total} bytes, and {limits.total} are allowed")
    for file, member in zip(manifest.files, files, strict=True):
        if len(member.content) > limits.file:
            raise _refused(f"{file.path!r} has {len(member.content)} bytes, and {limits.file} are allowed")
        if (file.size, file.sha256) != (len(member.content), hashlib.sha256(member.content).hexdigest()):
            raise _refused(f"{file.path!r} is not the file that was signed")
        yield file.path, member.content


def opened(bundle: bytes, limits: Limits) -> tuple[list[bytes], list[Member]]:
    """The three files about a bundle (manifest, signature, certificate), and its members; nothing is checked but its form.

    Raises:
        BundleError: it is too large, or no bundle.
    """
    if len(bundle) > limits.bundle:
        raise _refused(f"it has {len(bundle)} bytes, and {limits.bundle} are allowed")
    found = members(bundle, limits.files + len(_META) + 1)
    if tuple(member.name for member in found[: len(_META)]) != _META:
        raise _refused("it does not begin with its manifest, signature and certificate")
    for member, most in zip(found, _META_SIZES, strict=False):
        if len(member.content) > most:
            raise _refused(f"{member.name!r} has {len(member.content)} bytes, and {most} are allowed")
    return [member.content for member in found[: len(_META)]], found[len(_META) :]


def _refused(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder; a bundle is never edited")
