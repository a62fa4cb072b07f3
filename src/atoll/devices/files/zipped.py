"""Arrays in one file: NumPy's zipped form with a JSON header, never pickled, with checked contents."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import write_bytes

__all__ = ["check_version", "digest", "read_arrays", "write_arrays"]


def write_arrays(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Path:
    """Write a header and arrays.

    Raises:
        CheckpointError: the file cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
    write_bytes(path, content.getvalue())
    return path


def read_arrays(path: Path, noun: str, remedy: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The inverse of ``write_arrays``.

    Args:
        path: the file.
        noun: what the file contains, for errors.
        remedy: where such a file comes from.

    Raises:
        ConfigError: there is no file, or it contains something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            return json.loads(str(arrays.pop("header")[()])), arrays
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), remedy=f"record a {noun} and save it") from error
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ConfigError(f"the file is not a {noun}: {error}", where=str(path), remedy=remedy) from error


def check_version(path: Path, noun: str, found: int, version: int) -> None:
    """Refuse files of later versions.

    Raises:
        ConfigError: the file is of a later version.
    """
    if found > version:
        raise ConfigError(
            f"the {noun} has version {found}, but this Atoll reads up to {version}",
            where=str(path),
            remedy="use a later Atoll",
        )


def digest(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """A digest of a file's header and arrays, without the digest itself."""
    found = hashlib.sha256(json.dumps({k: v for k, v in header.items() if k != "digest"}, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"|{name} {array.dtype.str} {array.shape}|".encode())
        found.update(array.tobytes())
    return found.hexdigest()
