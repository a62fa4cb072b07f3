"""A job as one signed file: ``job.yaml`` and the modules of its source folder; the same bytes whenever it is made, except for nonce and time.

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

from atoll.core.errors import BundleError, IdentityError
from atoll.core.rooms import site_jobs

from ..identity import Credentials, Peer
from .archive import Member, members, write_archive
from .manifest import JOB_FILE, SOURCE, Manifest
from .names import LIMITS, BundleLimits, hidden, require_names
from .signing import require_signature, sign

__all__ = ["Verified", "contents", "make_bundle", "open_bundle", "source_files", "verify"]

_META = (".atoll/manifest.json", ".atoll/signature", ".atoll/certificate.pem")
_META_SIZES = (4 * 2**20, 1024, 64 * 1024)


@dataclass(frozen=True)
class Verified:
    """A bundle whose content is what its signer put into it.

    Attributes:
        manifest: its files.
        signer: who signed it.
        job: the text of ``job.yaml``.
    """

    manifest: Manifest
    signer: Peer
    job: bytes


def source_files(folder: Path, limits: BundleLimits = LIMITS) -> list[tuple[str, bytes]]:
    """Return the files that travel, sorted by path: all except hidden files and caches.

    Raises:
        BundleError: a link, a special file, a name that means something else on another system, or too much data.
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
    limits: BundleLimits = LIMITS,
    *,
    nonce: str | None = None,
    now: float | None = None,
) -> bytes:
    """Sign a job and its source folder.

    Args:
        job: the text of ``job.yaml``.
        source: the folder of its modules, if it has one.
        credentials: the administrator's.
        limits: bounds of a bundle.
        nonce: 32 hexadecimal digits, never used before; by default drawn from the system.
        now: seconds since 1970; by default this machine's clock.

    Raises:
        BundleError: something in the folder cannot travel.
        IdentityError: the credentials cannot sign.
        MissingExtraError: cryptography is not installed.
    """
    if len(job) > limits.job:
        raise BundleError(
            f"{JOB_FILE!r} has {len(job)} bytes, and {limits.job} are allowed",
            where=JOB_FILE,
            remedy="keep data out of the settings: sites hold their data themselves, and a module of the source folder may have more",
        )
    files = [(f"{SOURCE}/{name}", content) for name, content in (source_files(source, limits) if source else [])]
    files = sorted([(JOB_FILE, job), *files])
    signed = time.time() if now is None else now
    text = Manifest.of(files, secrets.token_hex(16) if nonce is None else nonce, int(signed * 1e6)).text()
    head = zip(_META, (text, sign(text, credentials), credentials.certificate), strict=True)
    made = write_archive([*head, *files])
    if len(made) > limits.bundle:
        raise _make_refusal(f"it has {len(made)} bytes, and {limits.bundle} are allowed")
    return made


def verify(
    bundle: bytes,
    *,
    ca: bytes,
    project: str,
    roles: Iterable[str] = ("admin", "site"),
    revoked: Callable[[int], bool] | None = None,
    now: datetime | None = None,
    known: Callable[[Manifest], bool] = lambda manifest: False,
    limits: BundleLimits = LIMITS,
) -> Verified:
    """Refuse a bundle that is not exactly what an administrator of the project has signed. Writes nothing, runs nothing.

    A site may sign jobs of its own: of the kinds that `atoll.core.rooms.site_jobs` lists, which name it, and without code.

    Args:
        bundle: its bytes.
        ca: the project's authorities, PEM.
        project: the project's name.
        roles: who may sign.
        revoked: tells whether a serial number is revoked.
        now: by default this machine's clock.
        known: tells whether this very manifest was accepted before. Then the signer's certificate need only have been
            valid when it signed: a job may outlive it. For a new manifest the signer could have set an earlier date.
        limits: bounds of a bundle.

    Raises:
        BundleError: a file was altered, added, moved or removed, or the bundle must not be opened.
        IdentityError: the signer has another role, project or authority, or its certificate is out of date or revoked; or it is a site, and the job none of its own.
        MissingExtraError: cryptography is not installed.
    """
    meta, files = open_bundle(bundle, limits)
    text, signature, certificate = meta
    manifest = Manifest.parse(text)
    then = _read_signing_time(manifest) if known(manifest) else None
    signer = require_signature(
        text, signature, certificate, ca=ca, project=project, roles=roles, revoked=revoked, now=now, then=then
    )
    job = b""
    for path, content in contents(manifest, files, limits):
        job = content if path == JOB_FILE else job
    if signer.role == "site":
        _require_own(signer, manifest, job)
    return Verified(manifest, signer, job)


def _require_own(signer: Peer, manifest: Manifest, job: bytes) -> None:
    """Refuse a job that a site may not sign alone.

    Raises:
        IdentityError: its kind is none of those that sites may ask for, it names another site, or it has code of its own.
    """
    from ..jobs.terms import job_tree
    from ..worker.policies import named_code

    tree, kinds = job_tree(job), site_jobs()
    setting = kinds.get(str(tree.get("job")))
    own = setting is not None and tree.get(setting) == signer.name
    code = [file.path for file in manifest.files if file.path != JOB_FILE] or [*named_code(tree, ())]
    if not own or code or tree.get("source") is not None:
        raise IdentityError(
            f"{signer} has signed a job {str(tree.get('job'))[:100]!r}" + (" with code" if code else ""),
            where="bundle",
            remedy=f"use the kit of an admin; a site signs alone: {', '.join(f'{kind} with {name}: {signer.name}' for kind, name in kinds.items())}",
        )


def _read_signing_time(manifest: Manifest) -> datetime | None:
    try:
        return datetime.fromtimestamp(manifest.signed / 1e6, UTC)
    except (OverflowError, OSError, ValueError):  # a time that no calendar has
        return None


def contents(manifest: Manifest, files: list[Member], limits: BundleLimits) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a bundle, each compared with the manifest.

    Raises:
        BundleError: they are not those of the manifest, out of order, altered, or too large.
    """
    if [file.path for file in manifest.files] != [member.name for member in files]:
        raise _make_refusal("its files are not those that were signed, in the order in which they were signed")
    require_names([file.path for file in manifest.files], limits)
    if manifest.total > limits.total:
        raise _make_refusal(f"its files have {manifest.total} bytes, and {limits.total} are allowed")
    for file, member in zip(manifest.files, files, strict=True):
        most = limits.job if file.path == JOB_FILE else limits.file
        if len(member.content) > most:
            raise _make_refusal(f"{file.path!r} has {len(member.content)} bytes, and {most} are allowed")
        if (file.size, file.sha256) != (len(member.content), hashlib.sha256(member.content).hexdigest()):
            raise _make_refusal(f"{file.path!r} is not the file that was signed")
        yield file.path, member.content


def open_bundle(bundle: bytes, limits: BundleLimits) -> tuple[list[bytes], list[Member]]:
    """Return the three files about a bundle (manifest, signature, certificate), and its members; this checks only its form.

    Raises:
        BundleError: it is too large, or not a bundle.
    """
    if len(bundle) > limits.bundle:
        raise _make_refusal(f"it has {len(bundle)} bytes, and {limits.bundle} are allowed")
    found = members(bundle, limits.files + len(_META) + 1)
    if tuple(member.name for member in found[: len(_META)]) != _META:
        raise _make_refusal("it does not begin with its manifest, signature and certificate")
    for member, most in zip(found, _META_SIZES, strict=False):
        if len(member.content) > most:
            raise _make_refusal(f"{member.name!r} has {len(member.content)} bytes, and {most} are allowed")
    return [member.content for member in found[: len(_META)]], found[len(_META) :]


def _make_refusal(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder; a bundle is never edited")
