"""Labels that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

__all__ = ["known_rows", "without_hidden"]

Array = NDArray[Any]


def without_hidden(labels: Array, labelled: Array, where: str = "data set") -> Array:
    """The labels with 0 (or no text) in place of those that are not there, so that nobody comes to depend on what they hold.

    Args:
        labels: ``(rows, ...)``.
        labelled: which are there: booleans or 0 and 1, one a row or one an entry of the labels.
        where: for the message.

    Raises:
        DataError: another shape, or other values.
    """
    there = np.asarray(labelled)
    if there.dtype.kind not in "biuf" or not np.isin(there, (0, 1)).all():
        raise DataError(
            "the column 'labelled' says of each label whether it is there, and holds something else",
            where=where,
            remedy="use True and False, or 1 and 0",
        )
    if there.shape not in (labels.shape, labels.shape[:1]):
        raise DataError(
            f"the column 'labelled' has shape {there.shape}, and the labels have {labels.shape}",
            where=where,
            remedy="give one entry a row, or one an entry of the labels",
        )
    there = there.astype(bool)
    if there.all():
        return labels
    there = there.reshape(there.shape + (1,) * (labels.ndim - there.ndim))
    made: Array = np.where(there, labels, np.zeros((), labels.dtype)).astype(labels.dtype, copy=False)
    return made


def known_rows(data: Any, who: str) -> Any:
    """The rows whose label is there; the data themselves where all are.

    Args:
        data: a `Dataset` or a `Shard`, or anything else with columns that has no ``labelled`` among them.
        who: leaves the other rows out, for the message.

    Raises:
        DataError: labels are there for a part of a row, which ``who`` cannot use.
    """
    if "labelled" not in getattr(data, "columns", ()):
        return data
    there = np.asarray(data["labelled"])
    if there.all():
        return data
    if there.ndim > 1:
        raise DataError(
            f"some labels of a row are missing, and {who} takes whole rows",
            where="column 'labelled'",
            remedy="say of each row whether it has its label, or use a PyTorch model with a loss for each entry",
        )
    rows = data.dataset() if hasattr(data, "dataset") else data
    return rows.take(there.astype(bool))
