"""Traces as files: what a trace holds, in NumPy's zipped form, with a header that is checked."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.files import write_bytes

__all__ = ["FORMAT", "VERSION", "read_trace", "write_trace"]

FORMAT = "atoll trace of devices"
VERSION = 1
_FIELDS = {"format": str, "version": int, "turns": int, "devices": int, "within": str, "digest": str}


def write_trace(path: Path, crashed: NDArray[np.bool_], point: NDArray[np.float64], within: str) -> Path:
    """Write the crashes as bits and the points of the crashed, in order.

    Raises:
        CheckpointError: the file cannot be written.
    """
    bits, points = np.packbits(crashed), np.asarray(point[crashed], dtype="<f8")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "turns": crashed.shape[0],
        "devices": crashed.shape[1],
        "within": within,
        "digest": _digest(bits, points),
    }
    content = io.BytesIO()
    np.savez_compressed(content, header=np.array(json.dumps(header)), crashed=bits, points=points)
    write_bytes(path, content.getvalue())
    return path


def read_trace(path: Path) -> tuple[NDArray[np.bool_], NDArray[np.float64], Literal["training", "response"]]:
    """The inverse.

    Raises:
        ConfigError: it is no trace, of a later version, or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"][()]))
            bits, points = file["crashed"], file["points"]
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), remedy="record a trace and save it") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _refused(path, f"the file is no trace: {error}") from error
    _check_header(path, header)
    turns, devices = header["turns"], header["devices"]
    sized = bits.dtype == np.uint8 and bits.shape == (-(-turns * devices // 8),) and points.dtype == np.dtype("<f8")
    if not sized or header["digest"] != _digest(bits, points):
        raise _refused(path, "the file is damaged: its contents are not those that its header tells of")
    crashed = np.unpackbits(bits, count=turns * devices).astype(bool).reshape(turns, devices)
    if points.shape != (int(crashed.sum()),):
        raise _refused(path, f"the file is damaged: {len(points)} points for {int(crashed.sum())} crashes")
    point = np.zeros((turns, devices))
    point[crashed] = points
    return crashed, point, header["within"]


def _check_header(path: Path, header: Any) -> None:
    said = isinstance(header, dict) and header.get("format") == FORMAT
    if not said or any(not isinstance(header.get(name), kind) for name, kind in _FIELDS.items()):
        raise _refused(path, "the file is no trace: its header says something else")
    if header["version"] > VERSION:
        raise ConfigError(
            f"the trace is of version {header['version']}, and this Atoll reads up to {VERSION}",
            where=str(path),
            remedy="use a later Atoll",
        )
    if header["turns"] < 1 or header["devices"] < 1 or header["within"] not in ("training", "response"):
        raise _refused(path, "the file is damaged: its header makes no sense")


def _refused(path: Path, what: str) -> ConfigError:
    return ConfigError(what, where=str(path), remedy="give a file that Recorded.save wrote")


def _digest(bits: NDArray[np.uint8], points: NDArray[np.float64]) -> str:
    return hashlib.sha256(bits.tobytes() + b"|" + points.tobytes()).hexdigest()
