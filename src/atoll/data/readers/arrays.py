"""Readers for files of arrays: IDX and NPZ."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing
from ._files import content, existing

__all__ = ["arrays_of", "read_idx", "read_idx_pair", "read_npz"]


# The idx format of the MNIST family.


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


# Arrays in NumPy's .npz archives.


def arrays_of(path: str | Path, names: tuple[str, ...]) -> list[Array]:
    """Return some arrays of an archive; pickled objects are refused."""
    with _open_archive(path) as archive:
        for name in names:
            if name not in archive:
                raise DataError(
                    f"no array {name!r}.{nearest(name, archive.files)}",
                    where=Path(path).name,
                    remedy=f"it holds {', '.join(archive.files)}; name them, as in train=('X', 'Y')",
                )
        return [archive[name] for name in names]


def names_in(path: str | Path) -> list[str]:
    """Return the names of the arrays in an archive."""
    with _open_archive(path) as archive:
        return list(archive.files)


@contextmanager
def _open_archive(path: str | Path) -> Iterator[Any]:
    path = existing(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except DataError:
        raise
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(
            f"not a readable archive of plain arrays: {private(error)}",
            where=path.name,
            remedy="write it with numpy.savez and without objects",
        ) from error


@checked_call
def read_npz(
    path: str | Path,
    *,
    train: tuple[str, str] | None = None,
    test: tuple[str, str] | Literal["auto"] | None = "auto",
    images: bool | None = None,
    scale: bool = True,
    flat: bool = False,
    task: str | None = None,
    classes: int | None = None,
    missing: Missing = None,
    missing_features: bool = False,
    name: str | None = None,
    citation: str = "",
) -> Dataset:
    """Read features and labels from an archive such as the CIFAR-10 ones. An array ``labelled`` says which training rows have a label, if some have none.

    Args:
        path: the archive.
        train: names of the arrays with the features and the labels; by default ``x_train`` and ``y_train``, or ``x`` and ``y``.
        test: the same for the test rows, or ``None`` to leave them out; by default ``x_test`` and ``y_test`` if they exist.
        images: whether the features are uint8 images ``(n, height, width, channels)``, to transpose to
            ``(n, channels, height, width)``. By default this follows from their form.
        scale: whether to divide images by 255, to float32.
        flat: whether to put all pixels on one axis.
        task: see `About`; inferred from the labels when omitted, see `Dataset`.
        classes: number of classes.
        missing: labels that mean "no label", such as -1; see `Dataset`.
        missing_features: whether features may be missing, as NaN; see `Dataset`.
        name: short name; the file's by default.
        citation: the source of the data.

    Raises:
        DataError: an array is missing, the archive has pickled objects, or images have another form.
    """
    pairs = _choose_pairs(path, train, test)
    parts: list[Dataset] = []
    for x_name, y_name in pairs:
        x, y = arrays_of(path, (x_name, y_name))
        fits = x.ndim == 4 and x.dtype == np.uint8
        if images and not fits:
            raise DataError(
                f"array {x_name!r} has shape {x.shape} and dtype {x.dtype}",
                where=Path(path).name,
                remedy="give uint8 images (n, height, width, channels), or set images=False",
            )
        if fits and images is not False:
            x = as_images(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), scale, flat)
        made = {"x": x, "y": y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y}
        if not parts and "labelled" in names_in(path):
            made["labelled"] = arrays_of(path, ("labelled",))[0]
        parts.append(
            Dataset(
                made,
                task=task,
                classes=classes,
                missing=missing,
                missing_features=missing_features,
                name=name or Path(path).stem,
                citation=citation,
            )
        )
        # The test rows have the same task, but may lack the highest class.
        task, classes = parts[0].task, parts[0].classes
    return parts[0] if len(parts) == 1 else parts[0].with_test(parts[1])


def _choose_pairs(
    path: str | Path, train: tuple[str, str] | None, test: tuple[str, str] | Literal["auto"] | None
) -> list[tuple[str, str]]:
    """The names of the arrays to read: those given, else the usual names that exist."""
    found = names_in(path)
    if train is None:
        train = ("x", "y") if "x" in found and "x_train" not in found else ("x_train", "y_train")
    if test == "auto":
        test = ("x_test", "y_test") if "x_test" in found else None
    return [train] if test is None else [train, test]
