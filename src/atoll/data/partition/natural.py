"""The natural partition of the data: by writer, user, year or airline."""

from __future__ import annotations

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import check_parties, check_sizes


@checked_call
def natural(
    dataset: Dataset, column: str, *, parties: int | None = None, seed: int | Rng = 0, min_size: int = 1
) -> Islands:
    """Make one client of each distinct value of a column, in sorted order, named by the value.

    Args:
        dataset: the rows to divide.
        column: the column that names the owner of each row.
        parties: merge the values at random into this many clients, with numbers of values as even as possible;
            these are called "client-0" and so on.
        seed: used only for merging.
        min_size: minimum number of rows of a client.

    Raises:
        DataError: there is no such column, it has fewer values than ``parties``, or a client has fewer than ``min_size`` rows.
    """
    keys, owner = np.unique(dataset[column], return_inverse=True)
    if dataset[column].ndim != 1:
        raise DataError(
            f"column {column!r} has {dataset[column].ndim} dimensions",
            where=f"data set {dataset.name!r}",
            remedy="choose a column with one value per row",
        )
    scheme = f"natural({column!r})"
    if parties is not None:
        check_parties(dataset, parties, scheme)
        if parties > len(keys):
            raise DataError(
                f"parties={parties} of {len(keys)} values of {column!r}",
                where=f"data set {dataset.name!r}",
                remedy=f"ask for at most {len(keys)}",
            )
        group = np.arange(len(keys)) % parties
        owner = root(seed).child("natural").generator().permutation(group)[owner]
    count = len(keys) if parties is None else parties
    sizes = np.bincount(owner, minlength=count)
    remedy = "merge values with parties=, or take(...) only rows of larger clients"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=True, remedy=remedy)
    return Islands.from_owner(dataset, owner, count, keys=keys if parties is None else None, scheme=scheme)
