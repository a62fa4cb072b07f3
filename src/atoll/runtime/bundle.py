"""What a person submits: a job as one signed file, and how it is packed, checked and unpacked."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atoll.core.errors import BundleError, IdentityError, JobError
from atoll.core.rooms import own_jobs

from . import identity
from .identity import Credentials, Peer, admit

__all__ = [
    "JOB_FILE",
    "LIMITS",
    "SOURCE",
    "BundleLimits",
    "File",
    "Manifest",
    "Member",
    "Verified",
    "contents",
    "hidden",
    "make_bundle",
    "members",
    "open_bundle",
    "require_names",
    "require_signature",
    "sign",
    "source_files",
    "unpack",
    "verify",
    "write_archive",
]


# ------------------------------------------------------------------ a zip archive with exactly one way to write it
#
# A zip archive with exactly one way to write it: stored regular files of mode 644, dated 1980-01-01, one behind the other.
# The standard library reads and writes it. An archive is written again after reading and compared, so links, devices,
# encryption, comments, hidden members and members that two programs would read differently are all refused in one step.
# Nothing is compressed, so nothing can be a bomb.


_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
_MALFORMED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError)


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Attributes:
        name: its path.
        content: its bytes.
    """

    name: str
    content: bytes


def write_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an archive of (name, content), in this order.

    Raises:
        BundleError: they are more than an archive holds, or a name appears twice or has a zero byte.
    """
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
            for name, content in files:
                if "\x00" in name or name in archive.NameToInfo:
                    raise _make_archive_error(f"the name {name!r} is refused: it appears twice, or has a zero byte")
                archive.writestr(_info(name), content)
    except zipfile.LargeZipFile as error:
        raise _make_archive_error(f"its files are more than an archive holds: {error}") from error
    return made.getvalue()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system, info.external_attr = _UNIX, _MODE
    return info


def members(content: bytes, most: int) -> list[Member]:
    """Return the files of an archive, in order. This takes at most a few times its size, whatever the archive claims.

    Args:
        content: the archive.
        most: how many files it may have.

    Raises:
        BundleError: it is not exactly what ``write_archive`` makes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = _files(archive, len(content), most)
        same = write_archive((member.name, member.content) for member in found) == content
    except _MALFORMED as error:
        raise _make_archive_error(f"it is not an archive: {error}") from error
    if not same:
        raise _make_archive_error("it has bytes outside its files: flags, dates, links, extra fields or comments")
    return found


def _files(archive: zipfile.ZipFile, size: int, most: int) -> list[Member]:
    infos = archive.infolist()
    if len(infos) > most:
        raise _make_archive_error(f"it has more than {most} files")
    # Checked before anything is read: members may overlap, or claim to be compressed.
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos) or sum(info.file_size for info in infos) > size:
        raise _make_archive_error("its files are compressed, or overlap")
    return [Member(info.filename, archive.read(info)) for info in infos]


def _make_archive_error(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder; a bundle is never edited")


# ------------------------------------------------------------------ names of files that mean the same file on every system, inside their folder and nowhere else


_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\\\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\uffff]')


@dataclass(frozen=True)
class BundleLimits:
    """What a bundle may be at most.

    Attributes:
        files: how many files.
        file: bytes of one file.
        total: bytes of all files together.
        bundle: bytes of the bundle itself.
        depth: folders in each other.
        job: bytes of ``job.yaml``.
    """

    files: int = 10_000
    file: int = 64 * 2**20
    total: int = 256 * 2**20
    bundle: int = 128 * 2**20
    depth: int = 32
    job: int = 256 * 2**10


LIMITS = BundleLimits()
"""What a bundle may be at most, unless a project says otherwise."""


def hidden(segment: str) -> bool:
    """Tell whether a file or folder of this name does not travel: ``.git``, ``__pycache__``, ``x.pyc``, ..."""
    return segment.startswith(".") or segment == "__pycache__" or segment.endswith((".pyc", ".pyo"))


def require_names(names: Iterable[str], limits: BundleLimits) -> None:
    """Refuse names that lead elsewhere, mean different files on different systems, or collide.

    Raises:
        BundleError: it names the first such name.
    """
    seen: dict[str, str] = {}
    files: set[str] = set()
    for name in names:
        why = _wrong(name, limits)
        if why:
            raise _make_name_error(name, why)
        segments = name.split("/")
        for depth in range(1, len(segments) + 1):
            path = "/".join(segments[:depth])
            folded = path.casefold()
            whole = depth == len(segments)
            if folded in files or (whole and folded in seen):
                raise _make_name_error(
                    name, "it is there already, as a file or a folder, or differs from it in case alone"
                )
            if seen.setdefault(folded, path) != path:
                raise _make_name_error(name, f"{seen[folded]!r} differs from it in case alone")
            if whole:
                files.add(folded)


def _wrong(name: str, limits: BundleLimits) -> str:
    if not name or name.startswith("/"):
        return "it must lie inside its folder"
    if len(name.encode("utf-8", "replace")) > 1024 or name.count("/") >= limits.depth:
        return f"it is too long, or lies more than {limits.depth} folders deep"
    return next(filter(None, map(_wrong_segment, name.split("/"))), "")


def _wrong_segment(segment: str) -> str:
    if segment in ("", ".", ".."):
        return "it must lie inside its folder"
    if found := _FORBIDDEN.search(segment):
        return f"the character {found[0]!r} is not allowed"
    if hidden(segment):
        return "hidden files and caches do not travel"
    if segment[-1] in ". " or segment[0] == " " or _RESERVED.fullmatch(segment):
        return "some systems take it for something else"
    if unicodedata.normalize("NFC", segment) != segment or not _encodable(segment):
        return "it is not in Unicode's composed form (NFC)"
    return "" if len(segment.encode()) <= 255 else "it is too long"


def _encodable(segment: str) -> bool:
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in segment)


def _make_name_error(name: str, why: str) -> BundleError:
    return BundleError(
        f"the name {name!r} is refused: {why}", where="bundle", remedy="rename the file, and submit again"
    )


# ------------------------------------------------------------------ what is in a bundle
#
# What is in a bundle: every file with its size and its SHA-256, in one order, and a nonce that distinguishes this signing from all others.


JOB_FILE = "job.yaml"
"""The job's own file, in every bundle."""

SOURCE = "source"
"""The folder of a bundle that holds the modules of a job."""

_FORMAT = 2
_NONCE = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class File:
    """A file of a bundle.

    Attributes:
        path: with ``/``, relative to the folder it is unpacked to.
        size: bytes.
        sha256: of its content, in hex.
    """

    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, content: bytes) -> File:
        """Describe a file with this content."""
        return cls(path, len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What a signature covers.

    Attributes:
        files: sorted by path.
        nonce: 128 random bits in hex: no two signings have the same.
        signed: when it was signed by the signer's clock, in microseconds since 1970.
    """

    files: tuple[File, ...]
    nonce: str = "0" * 32
    signed: int = 0

    @classmethod
    def of(cls, files: Iterable[tuple[str, bytes]], nonce: str = "0" * 32, signed: int = 0) -> Manifest:
        """Describe contents."""
        return cls(tuple(sorted((File.of(*file) for file in files), key=lambda file: file.path)), nonce, signed)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of its text, in hex: two bundles with one digest have the same content."""
        return hashlib.sha256(self.text()).hexdigest()

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def text(self) -> bytes:
        """Return its text; there is only one way to write it."""
        rows = [[file.path, file.size, file.sha256] for file in self.files]
        tree = {"atoll": _FORMAT, "nonce": self.nonce, "signed": self.signed, "files": rows}
        return json.dumps(tree, separators=(",", ":"), ensure_ascii=True).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Return the inverse of ``text``.

        Raises:
            BundleError: it is written in any other way, or the files are not in order.
        """
        try:
            tree = json.loads(text)
            files = tuple(File(*map(_check_kind, row, (str, int, str))) for row in tree["files"])
            made = cls(files, _check_kind(tree["nonce"], str), _check_kind(tree["signed"], int))
            same = made.text() == text and bool(_NONCE.fullmatch(made.nonce)) and 0 <= made.signed < 1 << 63
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _make_manifest_error("its manifest cannot be read") from error
        paths = [file.path for file in made.files]
        if not same or paths != sorted(paths) or JOB_FILE not in paths:
            raise _make_manifest_error(f"its manifest is of another version, out of order or without {JOB_FILE}")
        return made


def _check_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _make_manifest_error(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder, with this version of Atoll")


# ------------------------------------------------------------------ who signed a bundle: an ECDSA signature over its manifest, by a party of the project


_PURPOSE = b"atoll job bundle 1\n"


def sign(text: bytes, credentials: Credentials) -> bytes:
    """Sign a manifest with the party's own key.

    Raises:
        IdentityError: the key is unusable, or does not belong to the certificate.
        MissingExtraError: cryptography is not installed.
    """
    return identity.sign(_PURPOSE, text, credentials)


def require_signature(
    text: bytes,
    signature: bytes,
    certificate: bytes,
    *,
    ca: bytes,
    project: str,
    roles: Iterable[str],
    revoked: Callable[[int], bool] | None,
    now: datetime | None = None,
    then: datetime | None = None,
) -> Peer:
    """Refuse a manifest that no party of these roles in this project has signed; return the signer. With ``then``, a certificate that was valid at that time is enough.

    Raises:
        IdentityError: the signer's certificate is of a foreign authority, out of date, revoked, or of another project
            or role.
        BundleError: the signature does not fit.
        MissingExtraError: cryptography is not installed.
    """
    signer = admit(certificate, project=project, roles=roles, revoked=revoked)
    identity.require_issued(certificate, ca, now, then)
    if not identity.fits(_PURPOSE, text, signature, certificate):
        raise BundleError(
            f"the signature is not by {signer}",
            where="bundle",
            remedy="it was altered on the way, or another key signed it: submit the job again from its folder",
        )
    return signer


# ------------------------------------------------------------------ a job as one signed file
#
# A job as one signed file: ``job.yaml`` and the modules of its source folder; the same bytes whenever it is made, except for nonce and time.
# ```
# .atoll/manifest.json    every file with its SHA-256, a nonce and the time
# .atoll/signature        by an administrator's key, over the manifest
# .atoll/certificate.pem  the administrator's certificate
# job.yaml
# source/…
# ```


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
    roles: Iterable[str] = ("admin", "site", "analyst"),
    revoked: Callable[[int], bool] | None = None,
    now: datetime | None = None,
    known: Callable[[Manifest], bool] = lambda manifest: False,
    limits: BundleLimits = LIMITS,
) -> Verified:
    """Refuse a bundle that is not exactly what an administrator of the project has signed. Writes nothing, runs nothing.

    A site and an analyst may sign jobs of their own, of the kinds that `atoll.core.rooms.own_jobs` lists, and without code; those of a site name it, and those of an analyst name nobody else.

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
    if signer.role != "admin":
        _require_own(signer, manifest, job)
    return Verified(manifest, signer, job)


def _require_own(signer: Peer, manifest: Manifest, job: bytes) -> None:
    """Refuse a job that a site or an analyst may not sign alone.

    Raises:
        IdentityError: its kind is none of those that they may ask for, it names another site, or it has code of its own.
    """
    from .terms import job_tree
    from .worker.policies import named_code

    tree, kinds = job_tree(job), own_jobs(signer.role)
    setting = kinds.get(str(tree.get("job")))
    said = [] if not setting else _said_of(tree, setting.removesuffix("?"))
    own = setting is not None and (not setting or setting.endswith("?") or bool(said)) and all(one == signer.name for one in said)  # fmt: skip
    code = [file.path for file in manifest.files if file.path != JOB_FILE] or [*named_code(tree, ())]
    if not own or code or tree.get("source") is not None:
        raise IdentityError(
            f"{signer} has signed a job {str(tree.get('job'))[:100]!r}" + (" with code" if code else ""),
            where="bundle",
            remedy=f"use the kit of an admin; {'an analyst' if signer.role == 'analyst' else f'a {signer.role}'} signs alone: {', '.join(_words_of(kind, name, signer.name) for kind, name in kinds.items()) or 'nothing'}",
        )


def _said_of(tree: Mapping[str, Any], setting: str) -> list[Any]:
    """What a job says of a setting: in its own field, and among the options of its strategy."""
    options = str(tree.get("strategy", "")).partition(":")[2].split(",")
    found = [value for name, _, value in (one.partition("=") for one in options) if name == setting]
    return [*found, *([tree[setting]] if tree.get(setting) not in (None, "") else [])]


def _words_of(kind: str, setting: str, name: str) -> str:
    if setting.endswith("?"):
        return f"{kind}, for no {setting.removesuffix('?')} but {name}"
    return f"{kind} with {setting}: {name}" if setting else kind


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


# ------------------------------------------------------------------ unpacks a verified bundle: all of it or nothing, and only into its folder


def unpack(bundle: bytes, verified: Verified, folder: Path, limits: BundleLimits = LIMITS) -> None:
    """Write the files of a bundle into a new folder: ``job.yaml`` and ``source/``.

    It writes them to a temporary folder and moves that into place at the end; a failure leaves nothing behind.

    Args:
        bundle: its bytes.
        verified: the result of ``verify`` for these bytes; every file is compared with its manifest again.
        folder: the folder; it must not exist yet, or be empty.
        limits: bounds of a bundle.

    Raises:
        BundleError: the bundle is not the one that was verified, or must not be opened.
        JobError: the folder is taken, or cannot be written.
    """
    text, files = open_bundle(bundle, limits)
    if text[0] != verified.manifest.text():
        raise BundleError("it is not the bundle that was verified", where="bundle", remedy="verify these very bytes")
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise JobError("the folder is taken", where=str(folder), remedy="unpack into a new folder")
    with _aside(folder) as aside:
        for path, content in contents(verified.manifest, files, limits):
            _write(aside, path, content)
        aside.replace(folder)


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder next to it, removed afterwards unless it was moved."""
    made: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield made
    except OSError as error:
        raise JobError(
            f"the job's files cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="free space, or correct the permissions of the folder",
        ) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _write(top: Path, path: str, content: bytes) -> None:
    target = top.joinpath(*path.split("/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        file.write(content)
