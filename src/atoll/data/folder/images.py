"""MNIST, its writers, and part of CIFAR-10."""

from __future__ import annotations

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset
from ..readers.idx import read_idx_pair
from ..readers.npz import arrays_of, read_npz
from ._place import Folder, locate

__all__ = ["cifar10_subset", "mnist", "qmnist_writers"]

_MNIST = "LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998"
_QMNIST = "Yadav and Bottou: Cold case: the lost MNIST digits, NeurIPS 2019"
_CIFAR = "Krizhevsky: Learning multiple layers of features from tiny images, 2009"
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@checked_call
def mnist(*, scale: bool = True, flat: bool = False, folder: Folder = None) -> Dataset:
    """Load MNIST: 60,000 digits to train and 10,000 to test, ``x (rows, 1, 28, 28)``.

    Files: ``mnist/{train-images-idx3,train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}-ubyte.gz``.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 784)``.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: missing or malformed files.
    """
    parts = []
    for part in ("train", "t10k"):
        images = locate(folder, "mnist", f"{part}-images-idx3-ubyte.gz")
        labels = locate(folder, "mnist", f"{part}-labels-idx1-ubyte.gz")
        parts.append(read_idx_pair(images, labels, scale=scale, flat=flat, name="mnist", citation=_MNIST))
    return parts[0].with_test(parts[1])


@checked_call
def qmnist_writers(*, scale: bool = True, flat: bool = False, folder: Folder = None) -> Dataset:
    """Load MNIST with a column ``writer``: the person who wrote the digit. Pass it to `natural` to get one client per writer.

    There are 539 writers to train, with 19 to 131 digits each, and 297 others to test. File:
    ``qmnist_writers/mnist_writer_ids.npz`` (arrays ``train_writer`` and ``test_writer``), in addition to MNIST's.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 784)``.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: missing or malformed files.
    """
    path = locate(folder, "qmnist_writers", "mnist_writer_ids.npz")
    writers = arrays_of(path, ("train_writer", "test_writer"))
    train = mnist(scale=scale, flat=flat, folder=folder)
    parts = []
    for part, writer in zip((train, train.test), writers, strict=True):
        if part is None or len(part) != len(writer):
            raise DataError(
                f"{len(writer)} writers for {0 if part is None else len(part)} digits",
                where=path.name,
                remedy="use the writers of the same MNIST files",
            )
        citation = f"{_MNIST}; writers: {_QMNIST}"
        parts.append(part.with_columns({"writer": writer.astype(np.int64)}, name="qmnist_writers", citation=citation))
    return parts[0].with_test(parts[1])


@checked_call
def cifar10_subset(*, scale: bool = True, flat: bool = False, holdout: bool = False, folder: Folder = None) -> Dataset:
    """Load part of CIFAR-10: 10,000 images to train (1,000 per class) and 1,000 to test, ``x (rows, 3, 32, 32)``.

    The test rows are the first 1,000 of the official 10,000, so a score on them is not the official one. File:
    ``cifar10_subset/cifar10_subset.npz``.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 3072)``.
        holdout: whether to test on the 1,000 held-out training images instead.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    made = read_npz(
        locate(folder, "cifar10_subset", "cifar10_subset.npz"),
        test=("x_holdout", "y_holdout") if holdout else ("x_test", "y_test"),
        scale=scale,
        flat=flat,
        classes=10,
        name="cifar10_subset",
        citation=_CIFAR,
    )
    return made.with_columns({}, labels=_CIFAR_CLASSES)
