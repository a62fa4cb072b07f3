"""What the partitioners share: class codes, integer shares, and the check of the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

from .._supply import Pooled, offsets_of
from ..dataset import Dataset
from ..islands import Islands

Counts = NDArray[np.int64]


def class_codes(dataset: Dataset, scheme: str) -> tuple[Counts, int]:
    """Return the class of each row as ``0..classes-1``, and the number of classes."""
    if dataset.task not in ("classification", "binary"):
        raise DataError(
            f"{scheme} needs classes, but this is a {dataset.task} task",
            where=f"data set {dataset.name!r}",
            remedy="use iid, quantity_skew, gaussian_sizes or feature_skew",
        )
    if "labelled" in dataset and not dataset["labelled"].all():
        raise DataError(
            f"{scheme} needs the class of each row, and {int((~dataset['labelled']).sum()):,} labels are missing",
            where=f"data set {dataset.name!r}",
            remedy="divide the rows first and remove labels afterwards (atoll.data.unlabel), or use iid, quantity_skew or natural",
        )
    if dataset.task == "binary":
        return (dataset.y > 0).astype(np.int64), 2
    return dataset.y, int(dataset.classes or 1)


def check_parties(dataset: Dataset, parties: int, scheme: str) -> None:
    """Refuse a number of clients that is not a positive whole number."""
    if not isinstance(parties, int | np.integer) or isinstance(parties, bool) or parties < 1:
        raise DataError(
            f"parties={parties!r}",
            where=f"{scheme} of {dataset.name!r}",
            remedy="ask for a whole number of clients, at least 1",
        )


def check_between(value: float, low: float, high: float, what: str, scheme: str) -> None:
    """Refuse a setting outside ``[low, high]``."""
    if not low <= value <= high:
        raise DataError(f"{what}={value}", where=scheme, remedy=f"choose it between {low} and {high}")


def short(sizes: Counts, min_size: int, allow_empty: bool) -> Counts:
    """Return the clients with too few rows."""
    few = sizes < min_size
    return np.flatnonzero(few & (sizes > 0) if allow_empty else few)


def check_sizes(
    sizes: Counts,
    dataset: Dataset,
    scheme: str,
    *,
    min_size: int,
    allow_empty: bool,
    remedy: str,
) -> None:
    """Refuse a partition in which clients have fewer than ``min_size`` rows; name them."""
    lacking = short(sizes, min_size, allow_empty)
    if not len(lacking):
        return
    shown = ", ".join(f"client-{i} ({sizes[i]})" for i in lacking[:5])
    more = ", ..." if len(lacking) > 5 else ""
    raise DataError(
        f"{len(lacking):,} of {len(sizes):,} clients get fewer than min_size={min_size} rows: {shown}{more}",
        where=f"{scheme} of {dataset.name!r} ({len(dataset):,} rows)",
        remedy=f"{remedy}, or set allow_empty=True" if not allow_empty else remedy,
    )


def consecutive(dataset: Dataset, order: Counts | None, sizes: Counts, scheme: str, keys: Any = None) -> Islands:
    """Give each client the next ``sizes[i]`` rows of ``order`` (``None``: the order of the data set)."""
    supply = Pooled(dataset, offsets_of(sizes), order)
    return Islands(supply, about=dataset.about, keys=keys, test=dataset.test, scheme=scheme)


def even(total: int, parts: int) -> Counts:
    """Divide ``total`` into ``parts`` whole numbers that differ by at most one."""
    return np.asarray(np.full(parts, total // parts, np.int64) + (np.arange(parts) < total % parts))


def apportion(total: int, shares: NDArray[np.float64]) -> Counts:
    """Divide ``total`` in proportion to ``shares`` by largest remainders; the sum is exact."""
    exact = shares / shares.sum() * total
    whole: Counts = np.floor(exact).astype(np.int64)
    left = total - int(whole.sum())
    if left > 0:
        most = np.argsort(whole - exact, kind="stable")[:left]
        whole[most] += 1
    elif left < 0:  # the floors exceed a huge total by rounding
        whole[np.argsort(-whole, kind="stable")[:-left]] -= 1
    return whole


def rows_by_class(codes: Counts, classes: int, rng: np.random.Generator) -> list[Counts]:
    """Return the row numbers of each class, shuffled."""
    mixed = rng.permutation(len(codes))
    order = mixed[np.argsort(codes[mixed], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(codes, minlength=classes))[:-1])
