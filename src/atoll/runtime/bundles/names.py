"""Names of files that mean the same file on every system, inside their folder and nowhere else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from atoll.core.errors import BundleError

__all__ = ["LIMITS", "BundleLimits", "hidden", "require_names"]

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
            raise _make_refusal(name, why)
        segments = name.split("/")
        for depth in range(1, len(segments) + 1):
            path = "/".join(segments[:depth])
            folded = path.casefold()
            whole = depth == len(segments)
            if folded in files or (whole and folded in seen):
                raise _make_refusal(
                    name, "it is there already, as a file or a folder, or differs from it in case alone"
                )
            if seen.setdefault(folded, path) != path:
                raise _make_refusal(name, f"{seen[folded]!r} differs from it in case alone")
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


def _make_refusal(name: str, why: str) -> BundleError:
    return BundleError(
        f"the name {name!r} is refused: {why}", where="bundle", remedy="rename the file, and submit again"
    )
