"""Preparing features: scaling, and words to numbers."""

from __future__ import annotations

import re
import zlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ._checks import Array
from .dataset import Dataset

__all__ = ["hash_words", "scaled"]

_WORD = re.compile(r"\w+(?:'\w+)?")


@checked_call
def scaled(dataset: Dataset, kind: Literal["minmax", "standard"] = "standard", *, target: bool = False) -> Dataset:
    """Scale each feature by the ranges of the training rows, and the test rows by the same ranges.

    ``minmax``: ``(x - min) / (max - min)``; ``standard``: ``(x - mean) / std``. A constant feature becomes 0. The
    ranges are those of the pooled rows, which no single party of a real federation sees; there, compute them with a
    secure sum first.

    Args:
        dataset: the rows, with their test set.
        kind: the scaling.
        target: whether to scale the target of a regression too.

    Raises:
        DataError: an unknown kind, features that are not numbers, or a target of a task that is not a regression.
    """
    if kind not in ("minmax", "standard"):
        raise DataError(f"scaling {kind!r}", where=f"data set {dataset.name!r}", remedy="use 'minmax' or 'standard'")
    if target and dataset.task != "regression":
        raise DataError(
            f"the target of a {dataset.task} task", where=f"data set {dataset.name!r}", remedy="leave target=False"
        )
    ranges = {name: _range(dataset[name], kind, dataset.name) for name in (("x", "y") if target else ("x",))}
    train = _apply(dataset, ranges)
    return train if dataset.test is None else train.with_test(_apply(dataset.test, ranges))


def _range(values: Array, kind: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if values.dtype.kind not in "biuf" or not len(values):
        raise DataError(
            f"{len(values)} values of dtype {values.dtype}", where=f"data set {name!r}", remedy="scale numbers only"
        )
    wide = np.ma.masked_invalid(values.astype(np.float64))  # of the features that exist
    shift = wide.min(axis=0) if kind == "minmax" else wide.mean(axis=0)
    width = np.ma.filled(wide.max(axis=0) - shift if kind == "minmax" else wide.std(axis=0), 0.0)
    return np.ma.filled(shift, 0.0), np.where(width > 0, width, 1.0)


def _apply(dataset: Dataset, ranges: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Dataset:
    changed = {name: ((dataset[name] - a) / b).astype(np.float32) for name, (a, b) in ranges.items()}
    return dataset.with_columns(changed)


@checked_call
def hash_words(
    dataset: Dataset, *, column: str = "text", length: int = 25, buckets: int = 10_000, seed: int = 0
) -> Dataset:
    """Turn texts into ``x (rows, length)`` of word numbers, int64: 0 pads, words are ``1..buckets``.

    A word's number is a hash (CRC-32 of the lower-case word, with the seed), so parties agree without a shared
    vocabulary; different words may have the same number.

    Args:
        dataset: the rows, with their test set.
        column: the text column.
        length: number of words to keep of each text, from its start.
        buckets: number of different word numbers.
        seed: another seed gives other collisions.

    Raises:
        DataError: there is no such column, or it is not text.
    """
    if dataset[column].dtype.kind != "U" or length < 1 or buckets < 1:
        raise DataError(
            f"column {column!r} of dtype {dataset[column].dtype} with length={length}, buckets={buckets}",
            where=f"data set {dataset.name!r}",
            remedy="choose a text column and positive sizes",
        )
    made = dataset.with_columns({"x": _hashed(dataset[column], length, buckets, seed)})
    if dataset.test is None:
        return made
    x = _hashed(dataset.test[column], length, buckets, seed)
    return made.with_test(dataset.test.with_columns({"x": x}))


def _hashed(texts: Array, length: int, buckets: int, seed: int) -> NDArray[np.int64]:
    known: dict[str, int] = {}
    x = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        for place, word in enumerate(_WORD.findall(str(text).lower())[:length]):
            if word not in known:
                known[word] = 1 + zlib.crc32(word.encode(), seed) % buckets
            x[row, place] = known[word]
    return x
