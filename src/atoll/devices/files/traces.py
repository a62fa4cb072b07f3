"""Traces as files: a trace in NumPy's zipped form, with a checked header."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

from .zipped import check_version, read_arrays, write_arrays

__all__ = ["FORMAT", "VERSION", "packed", "read_trace", "unpacked", "write_trace"]

FORMAT = "atoll trace of devices"
VERSION = 1
_REMEDY = "give a file that Recorded.save wrote"
_FIELDS = {"format": str, "version": int, "turns": int, "devices": int, "within": str, "digest": str}


def packed(crashed: NDArray[np.bool_], point: NDArray[np.float64]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The crashes as bits, and the points of the crashes in order."""
    return np.packbits(crashed), np.asarray(point[crashed], dtype="<f8")


def unpacked(
    bits: NDArray[np.uint8], points: NDArray[np.float64], turns: int, devices: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The inverse of ``packed``.

    Raises:
        ValueError: the numbers of points and crashes differ.
    """
    crashed = np.unpackbits(bits, count=turns * devices).astype(bool).reshape(turns, devices)
    if points.shape != (int(crashed.sum()),):
        raise ValueError(f"{len(points)} points for {int(crashed.sum())} crashes")
    point = np.zeros((turns, devices))
    point[crashed] = points
    return crashed, point


def write_trace(path: Path, crashed: NDArray[np.bool_], point: NDArray[np.float64], within: str) -> Path:
    """Write a trace to a file; see ``packed``.

    Raises:
        CheckpointError: the file cannot be written.
    """
    bits, points = packed(crashed, point)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "turns": crashed.shape[0],
        "devices": crashed.shape[1],
        "within": within,
        "digest": _digest(bits, points),
    }
    return write_arrays(path, header, {"crashed": bits, "points": points})


def read_trace(path: Path) -> tuple[NDArray[np.bool_], NDArray[np.float64], Literal["training", "response"]]:
    """The inverse of ``write_trace``.

    Raises:
        ConfigError: the file is not a trace, is of a later version, or is damaged.
    """
    header, arrays = read_arrays(path, "trace", _REMEDY)
    _check_header(path, header)
    if not {"crashed", "points"} <= arrays.keys():
        raise _refused(path, "the file is not a trace: arrays are missing")
    bits, points = arrays["crashed"], arrays["points"]
    turns, devices = header["turns"], header["devices"]
    sized = bits.dtype == np.uint8 and bits.shape == (-(-turns * devices // 8),) and points.dtype == np.dtype("<f8")
    if not sized or header["digest"] != _digest(bits, points):
        raise _refused(path, "the file is damaged: its contents do not match its header")
    try:
        crashed, point = unpacked(bits, points, turns, devices)
    except ValueError as error:
        raise _refused(path, f"the file is damaged: {error}") from error
    return crashed, point, header["within"]


def _check_header(path: Path, header: Any) -> None:
    said = isinstance(header, dict) and header.get("format") == FORMAT
    if not said or any(not isinstance(header.get(name), kind) for name, kind in _FIELDS.items()):
        raise _refused(path, "the file is not a trace: it has another header")
    check_version(path, "trace", header["version"], VERSION)
    if header["turns"] < 1 or header["devices"] < 1 or header["within"] not in ("training", "response"):
        raise _refused(path, "the file is damaged: its header is invalid")


def _refused(path: Path, what: str) -> ConfigError:
    return ConfigError(what, where=str(path), remedy=_REMEDY)


def _digest(bits: NDArray[np.uint8], points: NDArray[np.float64]) -> str:
    return hashlib.sha256(bits.tobytes() + b"|" + points.tobytes()).hexdigest()
