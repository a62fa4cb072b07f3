"""Arrays in NumPy's .npz archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from atoll.core.errors import DataError, nearest

from .._checks import Array
from ..dataset import Dataset
from ._files import existing
from .idx import as_images

__all__ = ["arrays_of", "read_npz"]


def arrays_of(path: str | Path, names: tuple[str, ...]) -> list[Array]:
    """Return some arrays of an archive; pickled objects are refused."""
    path = existing(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in names:
                if name not in archive:
                    raise DataError(
                        f"no array {name!r}.{nearest(name, archive.files)}",
                        where=path.name,
                        remedy=f"it holds {', '.join(archive.files)}",
                    )
            return [archive[name] for name in names]
    except DataError:
        raise
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(
            f"not a readable archive of plain arrays: {error}",
            where=path.name,
            remedy="write it with numpy.savez and without objects",
        ) from error


def read_npz(
    path: str | Path,
    *,
    train: tuple[str, str] = ("x_train", "y_train"),
    test: tuple[str, str] | None = ("x_test", "y_test"),
    images: bool = True,
    scale: bool = True,
    flat: bool = False,
    task: str | None = "classification",
    classes: int | None = None,
    name: str | None = None,
    citation: str = "",
) -> Dataset:
    """Read features and labels from an archive such as the CIFAR-10 ones.

    Args:
        path: the archive.
        train: names of the arrays with the features and the labels.
        test: the same for the test rows, or ``None``.
        images: the features are uint8 images ``(n, height, width, channels)``; they are turned to
            ``(n, channels, height, width)``.
        scale: divide images by 255, to float32.
        flat: one axis for all the pixels.
        task: see `About`.
        classes: number of classes.
        name: short name; the file's by default.
        citation: where the data come from.

    Raises:
        DataError: a missing array, an archive with pickled objects, or images of another form.
    """
    parts = []
    for x_name, y_name in [train] if test is None else [train, test]:
        x, y = arrays_of(path, (x_name, y_name))
        if images:
            if x.ndim != 4 or x.dtype != np.uint8:
                raise DataError(
                    f"array {x_name!r} has shape {x.shape} and dtype {x.dtype}",
                    where=Path(path).name,
                    remedy="give uint8 images (n, height, width, channels), or set images=False",
                )
            x = as_images(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), scale, flat)
        if classes is None and task == "classification":
            classes = int(y.max()) + 1
        made = {"x": x, "y": y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y}
        parts.append(Dataset(made, task=task, classes=classes, name=name or Path(path).stem, citation=citation))
    return parts[0] if test is None else parts[0].with_test(parts[1])
