"""What is in a bundle: every file with its size and its SHA-256, in one order, and a nonce that distinguishes this signing from all others."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import BundleError

__all__ = ["JOB_FILE", "SOURCE", "File", "Manifest"]

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
            raise _make_refusal("its manifest cannot be read") from error
        paths = [file.path for file in made.files]
        if not same or paths != sorted(paths) or JOB_FILE not in paths:
            raise _make_refusal(f"its manifest is of another version, out of order or without {JOB_FILE}")
        return made


def _check_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _make_refusal(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder, with this version of Atoll")
