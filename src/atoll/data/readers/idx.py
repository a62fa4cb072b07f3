"""The idx format of the MNIST family."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing
from ._files import content

__all__ = ["read_idx", "read_idx_pair"]

# Third byte of the magic number -> element type (LeCun's description of the format); all big-endian.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@checked_call
def read_idx(path: str | Path) -> Array:
    """Read an idx file, plain or gzip-compressed.

    The header is a magic number ``00 00 type ndim`` and ``ndim`` sizes of four bytes, big-endian. The elements
    follow, last dimension fastest; the file ends after them.

    Raises:
        DataError: the magic number is wrong, or the body is shorter or longer than the header says.
    """
    raw = content(path)
    name = Path(path).name
    known = len(raw) >= 4 and raw[:2] == b"\0\0" and raw[2] in _TYPES and raw[3] > 0
    if not known:
        raise DataError(
            f"not an idx file: it begins with {raw[:4].hex(' ') or 'nothing'}",
            where=name,
            remedy="idx files begin with 00 00, an element type (08 for bytes) and the number of dimensions",
        )
    dims = raw[3]
    start = 4 + 4 * dims
    if len(raw) < start:
        raise DataError(f"truncated in the header: {len(raw)} of {start} bytes", where=name, remedy="fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", dims, 4))
    dtype = np.dtype(_TYPES[raw[2]])
    expected = start + prod(shape) * dtype.itemsize
    if len(raw) != expected:
        fault = "truncated" if len(raw) < expected else "too long"
        raise DataError(
            f"{fault}: {len(raw):,} bytes, but shape {shape} of {dtype} needs {expected:,}",
            where=name,
            remedy="fetch the file again",
        )
    array = np.frombuffer(raw, dtype, prod(shape), start).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


@checked_call
def read_idx_pair(
    images: str | Path,
    labels: str | Path,
    *,
    scale: bool = True,
    flat: bool = False,
    classes: int | None = 10,
    missing: Missing = None,
    name: str = "idx",
    citation: str = "",
) -> Dataset:
    """Read images and labels of the MNIST family.

    Args:
        images: idx file of shape ``(n, height, width)``.
        labels: idx file of shape ``(n,)``.
        scale: whether to divide bytes by 255, to float32; else keep uint8.
        flat: ``x`` of shape ``(n, height * width)`` instead of ``(n, 1, height, width)``.
        classes: number of classes.
        missing: labels that mean "no label", such as 255; see `Dataset`.
        name: short name.
        citation: the source of the data.

    Raises:
        DataError: the files are malformed, or do not belong together.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"images of shape {x.shape} with labels of shape {y.shape}",
            where=f"{Path(images).name} and {Path(labels).name}",
            remedy="pair (n, height, width) images with their (n,) labels",
        )
    columns = {"x": as_images(x[:, None], scale, flat), "y": y.astype(np.int64)}
    return Dataset(columns, task="classification", classes=classes, missing=missing, name=name, citation=citation)


def as_images(x: Array, scale: bool, flat: bool) -> Array:
    """Return uint8 images ``(n, channels, height, width)``, scaled and flattened as requested."""
    if scale:
        x = x.astype(np.float32) / np.float32(255.0)
    return x.reshape(len(x), -1) if flat else x
